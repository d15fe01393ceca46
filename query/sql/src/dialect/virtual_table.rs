//! Takes `CREATE VIRTUAL TABLE [IF NOT EXISTS] name USING SPAN_JOIN(a [PARTITIONED column], b [PARTITIONED column])` apart.

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use super::macros::arguments;
use super::tokens::after_parenthesis;
use super::{is_word, starts_with};

/// What becomes of times that only one side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Inner,
    Left,
    Outer,
}

/// A table to join, as it is named in SQL.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub(crate) table: String,
    /// The column whose values have spans of their own.
    pub(crate) partition: Option<String>,
}

/// The definition of a table of spans.
#[derive(Debug)]
pub(crate) struct SpanJoin {
    /// As it is named in SQL.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) sides: [Side; 2],
    /// What to do if the name is taken.
    pub(crate) if_taken: IfTaken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfTaken {
    Keep,
    Fail,
}

impl SpanJoin {
    /// Takes a statement apart; returns nothing if it makes no virtual table.
    pub(super) fn parse(statement: &[TokenWithSpan]) -> Result<Option<SpanJoin>> {
        if !starts_with(statement, &["create", "virtual", "table"]) {
            return Ok(None);
        }
        let rest = &statement[3..];
        let (if_taken, rest) = match starts_with(rest, &["if", "not", "exists"]) {
            true => (IfTaken::Keep, &rest[3..]),
            false => (IfTaken::Fail, rest),
        };
        let [name, using, module, inside @ ..] = rest else {
            return wrong();
        };
        let (Token::Word(name), true, Token::Word(module)) =
            (&name.token, is_word(using, "using"), &module.token)
        else {
            return wrong();
        };
        let kind = match module.value.to_lowercase().as_str() {
            "span_join" => Kind::Inner,
            "span_left_join" => Kind::Left,
            "span_outer_join" => Kind::Outer,
            _ => {
                return plan_err!(
                    "there are no virtual tables of `{module}`; there are those of SPAN_JOIN, SPAN_LEFT_JOIN and SPAN_OUTER_JOIN"
                );
            }
        };
        let is_whole = inside.first().is_some_and(|token| token.token == Token::LParen)
            && inside.last().is_some_and(|token| token.token == Token::RParen)
            && after_parenthesis(inside, 0) == inside.len();
        let (true, Some(inside)) = (is_whole, inside.get(1..inside.len().saturating_sub(1))) else {
            return wrong();
        };
        let [a, b] = arguments(inside)[..] else {
            return plan_err!(
                "{module} joins two tables; it is written {module}(a PARTITIONED column, b PARTITIONED column)"
            );
        };
        let (Some(a), Some(b)) = (side(a), side(b)) else {
            return wrong();
        };
        if let (Some(one), Some(other)) = (&a.partition, &b.partition)
            && one != other
        {
            return plan_err!(
                "{module}: `{}` is partitioned by `{one}` and `{}` by `{other}`; give the column one name in both",
                a.table,
                b.table
            );
        }
        Ok(Some(SpanJoin {
            name: name.to_string(),
            kind,
            sides: [a, b],
            if_taken,
        }))
    }
}

fn wrong() -> Result<Option<SpanJoin>> {
    plan_err!(
        "this makes no virtual table; it is written CREATE VIRTUAL TABLE name USING SPAN_JOIN(a PARTITIONED column, b PARTITIONED column), with names of tables or views"
    )
}

fn side(tokens: &[TokenWithSpan]) -> Option<Side> {
    let (table, partition) = match tokens {
        [table] => (table, None),
        [table, partitioned, column] if is_word(partitioned, "partitioned") => (table, Some(column)),
        _ => return None,
    };
    let word = |token: &TokenWithSpan| match &token.token {
        Token::Word(word) => Some(word.clone()),
        _ => None,
    };
    let as_column = |word: Word| match word.quote_style {
        None => word.value.to_lowercase(),
        Some(_) => word.value,
    };
    Some(Side {
        table: word(table)?.to_string(),
        partition: match partition {
            Some(column) => Some(as_column(word(column)?)),
            None => None,
        },
    })
}
