//! `CREATE PERFETTO MACRO` and calls of macros: tokens in place of tokens.
//!
//! `CREATE [OR REPLACE] PERFETTO MACRO name(argument Type, …) RETURNS Type AS tokens` defines one; `name!(tokens, …)` is replaced by its tokens, with `$argument`
//! replaced by those of the call. Types are not checked. A macro may use those that are defined when it is called.

use std::collections::HashMap;

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::definition::Header;
use super::tokens::after_parenthesis;

/// How deep macros may use macros.
const DEEPEST: usize = 64;
/// The most tokens of a statement: each level of macros may double them.
const MOST_TOKENS: usize = 1 << 20;

#[derive(Debug)]
struct Macro {
    arguments: Vec<String>,
    body: Vec<TokenWithSpan>,
}

/// The macros that were defined so far, by their names in small letters.
#[derive(Debug, Default)]
pub(crate) struct Macros {
    known: HashMap<String, Macro>,
}

impl Macros {
    /// Takes in the definition of a macro. Returns whether the statement is one.
    pub(super) fn define(&mut self, statement: &[TokenWithSpan]) -> Result<bool> {
        let Some(header) = Header::parse(statement, "macro")? else {
            return Ok(false);
        };
        if self.known.contains_key(&header.name) && !header.replaces {
            return plan_err!(
                "the macro `{}` exists; CREATE OR REPLACE PERFETTO MACRO replaces it",
                header.name
            );
        }
        let defined = Macro {
            arguments: header
                .arguments
                .into_iter()
                .map(|argument| argument.name)
                .collect(),
            body: header.body.to_vec(),
        };
        self.known.insert(header.name, defined);
        Ok(true)
    }

    /// Replaces the calls in a statement.
    pub(super) fn expand(&self, statement: &[TokenWithSpan]) -> Result<Vec<TokenWithSpan>> {
        let mut expanded = Vec::with_capacity(statement.len());
        self.expand_into(statement, DEEPEST, &mut expanded)?;
        Ok(expanded)
    }

    fn expand_into(
        &self,
        tokens: &[TokenWithSpan],
        deepest: usize,
        expanded: &mut Vec<TokenWithSpan>,
    ) -> Result<()> {
        let mut rest = tokens;
        while let [token, behind @ ..] = rest {
            let Some((name, arguments, behind_call)) = call(rest) else {
                if expanded.len() == MOST_TOKENS {
                    return plan_err!("with its macros the statement has more than {MOST_TOKENS} words");
                }
                expanded.push(token.clone());
                rest = behind;
                continue;
            };
            let Some(called) = self.known.get(&name) else {
                return plan_err!("there is no macro `{name}`; CREATE PERFETTO MACRO defines one");
            };
            if called.arguments.len() != arguments.len() {
                return plan_err!(
                    "the macro `{name}` takes {} arguments, not {}",
                    called.arguments.len(),
                    arguments.len()
                );
            }
            let Some(deepest) = deepest.checked_sub(1) else {
                return plan_err!(
                    "macros use each other more than {DEEPEST} levels deep, the last one is `{name}`"
                );
            };
            self.expand_into(&called.with(&name, &arguments)?, deepest, expanded)?;
            rest = behind_call;
        }
        Ok(())
    }
}

impl Macro {
    /// Returns the tokens that take the place of a call.
    fn with(&self, name: &str, arguments: &[&[TokenWithSpan]]) -> Result<Vec<TokenWithSpan>> {
        let mut tokens = Vec::with_capacity(self.body.len());
        for token in &self.body {
            let Token::Placeholder(placeholder) = &token.token else {
                tokens.push(token.clone());
                continue;
            };
            let is_it = |argument: &String| placeholder[1..].eq_ignore_ascii_case(argument);
            match self.arguments.iter().position(is_it) {
                Some(place) => tokens.extend_from_slice(arguments[place]),
                None => return plan_err!("the macro `{name}` has no argument `{placeholder}`"),
            }
            if tokens.len() > MOST_TOKENS {
                return plan_err!("the macro `{name}` has more than {MOST_TOKENS} words here");
            }
        }
        Ok(tokens)
    }
}

/// Takes a call at the beginning of the tokens apart: its name, its arguments, and the tokens behind it.
#[expect(clippy::type_complexity, reason = "each part is named where it is used")]
fn call(tokens: &[TokenWithSpan]) -> Option<(String, Vec<&[TokenWithSpan]>, &[TokenWithSpan])> {
    let [name, mark, parenthesis, ..] = tokens else {
        return None;
    };
    let (Token::Word(name), Token::ExclamationMark, Token::LParen) =
        (&name.token, &mark.token, &parenthesis.token)
    else {
        return None;
    };
    let end = after_parenthesis(tokens, 2);
    let (call, behind) = tokens.split_at(end);
    let inside = call.get(3..end - 1).unwrap_or_default();
    Some((name.value.to_lowercase(), arguments(inside), behind))
}

/// Splits tokens at the commas that are in no parentheses.
pub(super) fn arguments(tokens: &[TokenWithSpan]) -> Vec<&[TokenWithSpan]> {
    if tokens.is_empty() {
        return Vec::new();
    }
    let mut open = 0;
    tokens
        .split(|token| {
            match token.token {
                Token::LParen => open += 1,
                Token::RParen => open -= 1,
                _ => {}
            }
            open == 0 && token.token == Token::Comma
        })
        .collect()
}
