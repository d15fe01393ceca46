//! Takes definitions of functions and macros apart: `CREATE [OR REPLACE] PERFETTO FUNCTION|MACRO name(argument TYPE, …) RETURNS … AS …`.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use datafusion::sql::parser::Statement;

use super::macros::arguments;
use super::tokens::after_parenthesis;
use super::{expressions, is_word, plain, starts_with};

/// An argument or a column, with its type as it was written.
#[derive(Debug)]
pub(super) struct Typed<'a> {
    pub(super) name: String,
    kind: &'a [TokenWithSpan],
}

/// A definition, as far as functions and macros have the same parts. Names are in small letters.
#[derive(Debug)]
pub(super) struct Header<'a> {
    pub(super) name: String,
    pub(super) replaces: bool,
    pub(super) arguments: Vec<Typed<'a>>,
    returns: &'a [TokenWithSpan],
    pub(super) body: &'a [TokenWithSpan],
}

impl<'a> Header<'a> {
    /// Takes the definition of a `what` apart; returns nothing if the statement is none.
    pub(super) fn parse(statement: &'a [TokenWithSpan], what: &str) -> Result<Option<Header<'a>>> {
        let replaces = starts_with(statement, &["create", "or", "replace", "perfetto", what]);
        let rest = match replaces {
            true => &statement[5..],
            false if starts_with(statement, &["create", "perfetto", what]) => &statement[3..],
            false => return Ok(None),
        };
        let wrong = || {
            plan_err!(
                "this is no definition of a {what}; it is written CREATE PERFETTO {} name(argument TYPE, ..) RETURNS TYPE AS ..",
                what.to_uppercase()
            )
        };
        let [first, parenthesis, ..] = rest else {
            return wrong();
        };
        let (Token::Word(name), Token::LParen) = (&first.token, &parenthesis.token) else {
            return wrong();
        };
        let end = after_parenthesis(rest, 1);
        let Some(typed) = typed(rest.get(2..end - 1).unwrap_or_default()) else {
            return wrong();
        };
        let rest = &rest[end..];
        let Some(body) = rest.iter().position(|token| is_word(token, "as")) else {
            return wrong();
        };
        let [first, returns @ ..] = &rest[..body] else {
            return wrong();
        };
        if !is_word(first, "returns") || returns.is_empty() || rest.len() == body + 1 {
            return wrong();
        }
        Ok(Some(Header {
            name: name.value.to_lowercase(),
            replaces,
            arguments: typed,
            returns,
            body: &rest[body + 1..],
        }))
    }
}

/// Takes names with their types apart.
fn typed(tokens: &[TokenWithSpan]) -> Option<Vec<Typed<'_>>> {
    fn one(tokens: &[TokenWithSpan]) -> Option<Typed<'_>> {
        let (name, kind) = tokens.split_first()?;
        match &name.token {
            Token::Word(name) if !kind.is_empty() => Some(Typed {
                name: name.value.to_lowercase(),
                kind,
            }),
            _ => None,
        }
    }
    arguments(tokens).into_iter().map(one).collect()
}

/// The definition of a function. Names are in small letters.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) replaces: bool,
    pub(crate) arguments: Vec<(String, DataType)>,
    pub(crate) returns: Returns,
    /// Its query, in which a placeholder stands for each argument.
    pub(crate) body: Statement,
}

/// The result of a function.
#[derive(Debug, Clone)]
pub(crate) enum Returns {
    Value(DataType),
    Table(Vec<(String, DataType)>),
}

impl Function {
    /// Takes a statement apart; returns nothing if it defines no function.
    pub(super) fn parse(statement: &[TokenWithSpan]) -> Result<Option<Function>> {
        let Some(header) = Header::parse(statement, "function")? else {
            return Ok(None);
        };
        let name = header.name;
        let types = |columns: Vec<Typed<'_>>| {
            let one = |column: Typed<'_>| Ok((column.name, data_type(&name, column.kind)?));
            columns.into_iter().map(one).collect::<Result<Vec<_>>>()
        };
        let returns = match header.returns {
            [table, columns @ ..] if is_word(table, "table") => {
                match columns.get(1..columns.len().saturating_sub(1)).and_then(typed) {
                    Some(columns) if !columns.is_empty() => Returns::Table(types(columns)?),
                    _ => {
                        return plan_err!(
                            "the function `{name}` returns a table without columns; write RETURNS TABLE(column TYPE, ..)"
                        );
                    }
                }
            }
            kind => Returns::Value(data_type(&name, kind)?),
        };
        let arguments = types(header.arguments)?;
        let mut body = plain(header.body.to_vec())?;
        expressions::check_placeholders(&mut body, &name, &arguments)?;
        Ok(Some(Function {
            name,
            replaces: header.replaces,
            arguments,
            returns,
            body,
        }))
    }
}

/// Returns the type that the trace processor has under a name. What it has for ids, times and truth are whole numbers.
fn data_type(function: &str, kind: &[TokenWithSpan]) -> Result<DataType> {
    let name = match kind.first().map(|token| &token.token) {
        Some(Token::Word(name)) => name.value.to_uppercase(),
        _ => String::new(),
    };
    Ok(match name.as_str() {
        "BOOL" | "INT" | "UINT" | "LONG" | "ID" | "JOINID" | "ARGSETID" | "TIMESTAMP" | "DURATION" => {
            DataType::Int64
        }
        "FLOAT" | "DOUBLE" => DataType::Float64,
        "STRING" => DataType::Utf8,
        "BYTES" | "PROTO" => DataType::Binary,
        _ => {
            return plan_err!(
                "the function `{function}` has the type `{name}`, which does not exist; there are LONG, DOUBLE, STRING, BOOL, BYTES, TIMESTAMP, DURATION and ID"
            );
        }
    })
}
