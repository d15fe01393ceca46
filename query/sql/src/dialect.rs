//! The trace processor's SQL, as far as it differs from DataFusion's: rewritten before it is planned.
//!
//! [`Database`](crate::Database) calls it for each text. A text is taken apart at its `;`. Of each statement, first the macros are expanded (`macros`), then
//! what DataFusion's parser does not know is rewritten token by token (`tokens`), then expressions are given SQLite's meaning (`expressions`, `existence`, `groups`). Definitions of
//! functions and of virtual tables are taken apart here (`definition`, `virtual_table`), and planned by [`defined`](crate::defined) and
//! [`span_join`](crate::span_join). While a statement is planned, names get SQLite's meaning (`names`).

mod definition;
mod existence;
mod expressions;
mod groups;
mod laterals;
mod macros;
mod modules;
mod names;
mod rows;
mod tokens;
mod virtual_table;

use datafusion::common::plan_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

pub(crate) use definition::{Function, Returns};
pub(crate) use macros::Macros;
pub(crate) use names::{number_repeated, replace_name};
pub(crate) use tokens::{PATTERN, regular_expression};
pub(crate) use virtual_table::{IfTaken, Kind, Side, SpanJoin};

/// How deep expressions may be nested.
const RECURSION: usize = 100;

/// One statement of a text.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A statement that DataFusion plans.
    Plain(Box<Statement>),
    /// The definition of a function.
    Function(Box<Function>),
    /// A virtual table.
    SpanJoin(SpanJoin),
}

/// Takes a text of statements with `;` between them apart. Macros that it defines are added to `macros`, and are there for the statements behind them.
pub(crate) fn parse(sql: &str, macros: &mut Macros) -> Result<Vec<Parsed>> {
    let mut parsed = Vec::new();
    let tokens = tokenized(sql)?;
    for statement in tokens.split(|token| token.token == Token::SemiColon) {
        if statement.is_empty() || tokens::is_index(statement) || macros.define(statement)? {
            continue;
        }
        if let Some(definitions) = modules::included(statement)? {
            parsed.extend(parse(definitions, macros)?);
            continue;
        }
        let statement = macros.expand(statement)?;
        let one = if let Some(function) = Function::parse(&statement)? {
            Parsed::Function(Box::new(function))
        } else if let Some(join) = SpanJoin::parse(&statement)? {
            Parsed::SpanJoin(join)
        } else {
            Parsed::Plain(Box::new(plain(statement)?))
        };
        parsed.push(one);
    }
    Ok(parsed)
}

/// Parses the one statement of a text that defines nothing.
pub(crate) fn parse_one(sql: &str) -> Result<Statement> {
    plain(tokenized(sql)?)
}

/// Returns the texts in quotes of an SQL text.
pub(crate) fn texts(sql: &str) -> Result<Vec<String>> {
    let texts = tokenized(sql)?.into_iter().filter_map(|token| match token.token {
        Token::SingleQuotedString(text) => Some(text),
        // It may be a text too.
        Token::Word(word) if word.quote_style == Some('"') => Some(word.value),
        _ => None,
    });
    Ok(texts.collect())
}

/// Whether a text has this word, other than in quotes and comments.
pub(crate) fn has_word(sql: &str, word: &str) -> Result<bool> {
    Ok(tokenized(sql)?.iter().any(|token| is_word(token, word)))
}

/// Returns the tokens of a text without space and comments.
fn tokenized(sql: &str) -> Result<Vec<TokenWithSpan>> {
    let mut tokens = Tokenizer::new(&GenericDialect {}, sql)
        .tokenize_with_location()
        .map_err(|error| DataFusionError::Plan(format!("the SQL cannot be read: {error}")))?;
    tokens::hexadecimal_numbers(&mut tokens);
    tokens::name_in_brackets(&mut tokens);
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    Ok(tokens)
}

/// Parses the tokens of one statement.
fn plain(tokens: Vec<TokenWithSpan>) -> Result<Statement> {
    let mut statements = DFParserBuilder::new(tokens::rewritten(tokens)?)
        .with_dialect(&GenericDialect {})
        .with_recursion_limit(RECURSION)
        .build()?
        .parse_statements()?;
    match (statements.pop_front(), statements.is_empty()) {
        (Some(mut statement), true) => {
            expressions::rewrite(&mut statement)?;
            Ok(statement)
        }
        _ => plan_err!("one statement is wanted"),
    }
}

/// Whether a token is this word, without quotes.
fn is_word(token: &TokenWithSpan, word: &str) -> bool {
    matches!(&token.token, Token::Word(it) if it.quote_style.is_none() && it.value.eq_ignore_ascii_case(word))
}

/// Whether a statement begins with these words.
fn starts_with(statement: &[TokenWithSpan], words: &[&str]) -> bool {
    statement.len() >= words.len()
        && words
            .iter()
            .zip(statement)
            .all(|(word, token)| is_word(token, word))
}
