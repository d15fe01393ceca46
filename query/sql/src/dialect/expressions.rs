//! Gives expressions the meaning that they have in SQLite:
//! - a condition may be a number, which is true unless it is 0: [`truth`](crate::functions::TRUTH) is put around conditions that are no comparisons;
//! - a condition that is selected is 0 or 1; `sum`, `avg`, `min` and `max` count it so;
//! - `LIKE` knows no difference between small and capital letters, and `COLLATE NOCASE` neither;
//! - `iif`, also called `if`, `total`, `mod`, `group_concat`, `percentile`, `glob`, `like`, `min` and `max` of several values, and `~x` become what DataFusion has for them;
//! - `trace_start`, `trace_end`, `trace_dur` and `extract_metadata` become queries, and `time_to_ms` and the like sums;
//! - `CAST` of text to a number reads what it begins with; what is divided by 0 is null; `REGEXP` is an operator.

use std::ops::ControlFlow;

use datafusion::arrow::datatypes::DataType;
use datafusion::error::{DataFusionError, Result};
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CaseWhen, CastKind, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Ident, JoinConstraint, JoinOperator, ObjectName, Select, SelectItem, UnaryOperator,
    Value, VisitMut, VisitorMut, helpers::attached_token::AttachedToken,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use crate::functions::{EPOCH_WITH_FRACTION, REAL, SUBSTRING, TEXT, TRUTH, WHOLE};

use super::tokens::{IS, IS_NOT, PATTERN};
use super::{existence, groups, laterals, rows};

/// Rewrites all expressions of a statement.
pub(super) fn rewrite(statement: &mut Statement) -> Result<()> {
    visit(statement, &mut Rewriter::default())
}

/// Gives the placeholders in a function's body the types of its arguments.
pub(super) fn check_placeholders(
    body: &mut Statement,
    function: &str,
    arguments: &[(String, DataType)],
) -> Result<()> {
    visit(body, &mut Placeholders { function, arguments })
}

pub(super) fn visit<V: VisitorMut<Break = DataFusionError>>(
    statement: &mut Statement,
    visitor: &mut V,
) -> Result<()> {
    let flow = match statement {
        Statement::Statement(statement) => statement.visit(visitor),
        Statement::Explain(explain) => return visit(&mut explain.statement, visitor),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => query.visit(visitor),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        _ => ControlFlow::Continue(()),
    };
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The names of what each query selects, as the queries around come first.
#[derive(Default)]
struct Rewriter {
    written: Vec<Vec<Option<String>>>,
}

/// Returns how a selected value without a name is written. Columns have names.
fn written(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(_) | Expr::CompoundIdentifier(_)) => None,
        // `CAST(x AS INT)` has become this among the tokens.
        SelectItem::UnnamedExpr(value) => Some(value.to_string().replace(" AS BIGINT)", " AS INTEGER)")),
        _ => None,
    }
}

/// Calls a selected value what it was written as, if it was rewritten.
fn keep_name(item: &mut SelectItem, name: Option<String>) {
    if let (Some(name), Some(now)) = (name, written(item))
        && name != now
        && let SelectItem::UnnamedExpr(value) = item
    {
        let expr = std::mem::replace(value, null());
        let alias = Ident::with_quote('"', name);
        *item = SelectItem::ExprWithAlias { expr, alias };
    }
}

impl VisitorMut for Rewriter {
    type Break = DataFusionError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        self.written.push(select.projection.iter().map(written).collect());
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        let conditions = [&mut select.selection, &mut select.having, &mut select.qualify];
        conditions.into_iter().flatten().for_each(condition);
        existence::count(&mut select.projection);
        select.projection.iter_mut().for_each(selected);
        groups::complete(select);
        if let Err(error) = laterals::complete(select) {
            return ControlFlow::Break(error);
        }
        let names = self.written.pop().unwrap_or_default();
        for (item, name) in select.projection.iter_mut().zip(names) {
            keep_name(item, name);
        }
        let joins = select.from.iter_mut().flat_map(|from| &mut from.joins);
        for join in joins {
            use JoinOperator::{CrossJoin, FullOuter, Inner, Join, Left, LeftOuter, Right, RightOuter};
            if let Inner(on) | Join(on) | Left(on) | LeftOuter(on) | Right(on) | RightOuter(on)
            | FullOuter(on) | CrossJoin(on) = &mut join.join_operator
                && let JoinConstraint::On(on) = on
            {
                condition(on);
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<DataFusionError> {
        match rows::replaced(expression) {
            Ok(None) => {}
            Ok(Some(other)) => {
                *expression = other;
                return ControlFlow::Continue(());
            }
            Err(error) => return ControlFlow::Break(error),
        }
        match expression {
            Expr::BinaryOp {
                left,
                op: BinaryOperator::And | BinaryOperator::Or,
                right,
            } => {
                condition(left);
                condition(right);
            }
            Expr::BinaryOp {
                left,
                op: BinaryOperator::Custom(operator),
                right,
            } if matches!(operator.as_str(), IS | IS_NOT) => {
                // As an operator, so that texts and numbers meet (`functions/truth.rs`).
                let is = binary(*take(left), BinaryOperator::Spaceship, *take(right));
                *expression = match operator == IS {
                    true => is,
                    false => Expr::UnaryOp {
                        op: UnaryOperator::Not,
                        expr: Box::new(Expr::Nested(Box::new(is))),
                    },
                };
            }
            Expr::IsTrue(value) | Expr::IsNotTrue(value) | Expr::IsFalse(value) | Expr::IsNotFalse(value) => {
                condition(value);
            }
            Expr::BinaryOp {
                op: BinaryOperator::Divide | BinaryOperator::Modulo,
                right,
                ..
            } if !is_number(right) => {
                let divisor = *take(right);
                **right = call("nullif", vec![divisor, number("0")]);
            }
            Expr::BinaryOp {
                left,
                op: BinaryOperator::StringConcat,
                right,
            } => {
                as_number(left);
                as_number(right);
                // Two numbers have no text in common for DataFusion.
                if !is_text(left) && !is_text(right) {
                    let value = *take(left);
                    **left = call(TEXT, vec![value]);
                }
            }
            Expr::Cast {
                kind: CastKind::Cast,
                expr,
                data_type,
                array: false,
                format: None,
            } => {
                let name = match data_type {
                    ast::DataType::BigInt(None) => WHOLE,
                    ast::DataType::Double(_) | ast::DataType::Real | ast::DataType::Float(_) => REAL,
                    ast::DataType::Text | ast::DataType::Varchar(_) | ast::DataType::Char(_) => TEXT,
                    _ => return ControlFlow::Continue(()),
                };
                *expression = call(name, vec![*take(expr)]);
            }
            Expr::RLike {
                negated,
                expr,
                pattern,
                ..
            } => {
                let op = match negated {
                    true => BinaryOperator::PGRegexNotMatch,
                    false => BinaryOperator::PGRegexMatch,
                };
                *expression = binary(*take(expr), op, *take(pattern));
            }
            Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr,
            } => condition(expr),
            Expr::UnaryOp {
                op: UnaryOperator::BitwiseNot,
                expr,
            } => {
                // Two's complement.
                let negative = Expr::UnaryOp {
                    op: UnaryOperator::Minus,
                    expr: Box::new(Expr::Nested(take(expr))),
                };
                *expression = Expr::Nested(Box::new(binary(negative, BinaryOperator::Minus, number("1"))));
            }
            Expr::Case {
                operand: None,
                conditions,
                ..
            } => conditions
                .iter_mut()
                .for_each(|branch| condition(&mut branch.condition)),
            Expr::Like {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => {
                *expression = Expr::ILike {
                    negated: *negated,
                    any: false,
                    expr: take(expr),
                    pattern: take(pattern),
                    escape_char: escape_char.take(),
                };
            }
            Expr::Collate { expr, collation } => {
                let name = collation.to_string().to_lowercase();
                *expression = match name.as_str() {
                    "nocase" => call("lower", vec![*take(expr)]),
                    "binary" => *take(expr),
                    _ => {
                        return broken(format!(
                            "COLLATE {collation} does not exist; there are NOCASE and BINARY"
                        ));
                    }
                };
            }
            Expr::Substring {
                expr,
                substring_from: Some(from),
                substring_for,
                ..
            } => {
                // DataFusion counts other places the same way, and faster.
                let is_plain =
                    is_number(from) && substring_for.as_ref().is_none_or(|length| is_number(length));
                if !is_plain {
                    let mut values = vec![*take(expr), *take(from)];
                    values.extend(substring_for.take().map(|length| *length));
                    *expression = call(SUBSTRING, values);
                }
            }
            Expr::Function(function) => {
                if let Some(other) = replaced(function) {
                    *expression = other;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns what takes the place of a call, unless it stays as it may have been changed.
fn replaced(function: &mut Function) -> Option<Expr> {
    let [ast::ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else {
        return None;
    };
    let name = name.value.to_lowercase();
    let mut arguments = arguments(function)?;
    let count = arguments.len();
    match (name.as_str(), arguments.as_mut_slice()) {
        ("iif", [test, rest @ ..]) if matches!(rest.len(), 1 | 2) => {
            condition(test);
            let mut parts = arguments
                .drain(..)
                .map(|argument| std::mem::replace(argument, null()));
            let (test, result) = (parts.next()?, parts.next()?);
            Some(case(test, result, parts.next()))
        }
        ("sum" | "avg" | "min" | "max", [value]) => {
            as_number(value);
            None
        }
        ("total", [value]) => {
            as_number(value);
            function.name = named("sum");
            let sum = Expr::Function(function.clone());
            Some(call(
                "coalesce",
                vec![
                    cast(sum, ast::DataType::Double(ast::ExactNumberInfo::None)),
                    number("0.0"),
                ],
            ))
        }
        ("min" | "max", _) if count > 1 => {
            let values: Vec<Expr> = arguments.into_iter().map(|argument| argument.clone()).collect();
            let is_null = values
                .iter()
                .map(|value| Expr::IsNull(Box::new(Expr::Nested(Box::new(value.clone())))))
                .reduce(|one, other| binary(one, BinaryOperator::Or, other))?;
            let name = match name.as_str() {
                "min" => "least",
                _ => "greatest",
            };
            Some(case(is_null, null(), Some(call(name, values))))
        }
        ("group_concat", [value, separator @ ..]) if separator.len() < 2 => {
            as_number(value);
            **value = call(TEXT, vec![std::mem::replace(*value, null())]);
            let has_separator = !separator.is_empty();
            function.name = named("string_agg");
            if !has_separator && let FunctionArguments::List(list) = &mut function.args {
                let comma = Expr::Value(Value::SingleQuotedString(",".to_owned()).into());
                list.args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(comma)));
            }
            None
        }
        ("percentile", [_, percent]) => {
            let whole = std::mem::replace(*percent, null());
            **percent = match &whole {
                // The fraction must be a plain number.
                Expr::Value(value) if let Value::Number(text, _) = &value.value => {
                    number(&(text.parse::<f64>().ok()? / 100.0).to_string())
                }
                _ => binary(whole, BinaryOperator::Divide, number("100.0")),
            };
            function.name = named("percentile_cont");
            None
        }
        ("glob", [pattern, text]) => {
            let (pattern, text) = (
                std::mem::replace(*pattern, null()),
                std::mem::replace(*text, null()),
            );
            let matches = binary(text, BinaryOperator::PGRegexMatch, call(PATTERN, vec![pattern]));
            Some(Expr::Nested(Box::new(matches)))
        }
        ("like", [pattern, text]) => Some(Expr::Nested(Box::new(Expr::ILike {
            negated: false,
            any: false,
            expr: Box::new(std::mem::replace(*text, null())),
            pattern: Box::new(std::mem::replace(*pattern, null())),
            escape_char: None,
        }))),
        ("trace_start", []) => parsed("(select start_ts from trace_bounds)"),
        ("trace_end", []) => parsed("(select end_ts from trace_bounds)"),
        ("trace_dur", []) => parsed("(select end_ts - start_ts from trace_bounds)"),
        ("extract_metadata", [Expr::Value(name)]) => {
            let Value::SingleQuotedString(name) = &name.value else {
                return None;
            };
            let column = match is_metadata_number(name) {
                true => "int_value",
                false => "str_value",
            };
            let name = name.replace('\'', "''");
            parsed(&format!(
                "(select {column} from metadata where name = '{name}' limit 1)"
            ))
        }
        ("unixepoch", values) if values.iter().any(|value| is_subsec(value)) => {
            function.name = named(EPOCH_WITH_FRACTION);
            None
        }
        ("sign", [_]) => {
            function.name = named("signum");
            Some(cast(
                Expr::Function(function.clone()),
                ast::DataType::BigInt(None),
            ))
        }
        ("if", [_, _, ..]) => {
            function.name = named("iif");
            replaced(function)
        }
        ("mod", [value, divisor]) => {
            let value = cast(
                std::mem::replace(*value, null()),
                ast::DataType::Double(ast::ExactNumberInfo::None),
            );
            let divisor = std::mem::replace(*divisor, null());
            let divisor = call("nullif", vec![divisor, number("0")]);
            Some(Expr::Nested(Box::new(binary(
                value,
                BinaryOperator::Modulo,
                divisor,
            ))))
        }
        (name, [value]) => {
            let (op, unit) = match (name.strip_prefix("time_to_"), name.strip_prefix("time_from_")) {
                (Some(unit), _) => (BinaryOperator::Divide, unit),
                (_, Some(unit)) => (BinaryOperator::Multiply, unit),
                _ => return None,
            };
            let nanoseconds = nanoseconds(unit)?;
            let value = cast(std::mem::replace(*value, null()), ast::DataType::BigInt(None));
            Some(Expr::Nested(Box::new(binary(value, op, number(nanoseconds)))))
        }
        _ => None,
    }
}

/// Whether a value is the modifier of a time that shows fractions of seconds.
fn is_subsec(value: &Expr) -> bool {
    let Expr::Value(value) = value else {
        return false;
    };
    matches!(&value.value, Value::SingleQuotedString(text) if ["subsec", "subsecond"].iter().any(|it| text.eq_ignore_ascii_case(it)))
}

/// Whether a key of the trace processor's metadata has a number.
fn is_metadata_number(key: &str) -> bool {
    let ends = ["_ns", "_us", "_bytes", "_gb", "_mins", "_id", "_index"];
    ends.iter().any(|end| key.ends_with(end))
        || ["android_sdk_version", "benchmark_had_failures"].contains(&key)
}

/// Returns how many ns a unit has, by its name in the trace processor's functions.
fn nanoseconds(unit: &str) -> Option<&'static str> {
    Some(match unit {
        "ns" => "1",
        "us" => "1000",
        "ms" => "1000000",
        "s" => "1000000000",
        "min" => "60000000000",
        "hours" => "3600000000000",
        "days" => "86400000000000",
        _ => return None,
    })
}

/// Returns an expression of ours.
pub(super) fn parsed(sql: &str) -> Option<Expr> {
    let parser = Parser::new(&GenericDialect {}).try_with_sql(sql);
    parser.and_then(|mut parser| parser.parse_expr()).ok()
}

/// Returns the plain arguments of a call, or nothing if it has others.
fn arguments(function: &mut Function) -> Option<Vec<&mut Expr>> {
    let FunctionArguments::List(list) = &mut function.args else {
        return None;
    };
    let one = |argument| match argument {
        &mut FunctionArg::Unnamed(FunctionArgExpr::Expr(ref mut value)) => Some(value),
        _ => None,
    };
    list.args.iter_mut().map(one).collect()
}

/// Makes a condition of an expression, unless it is one.
fn condition(expression: &mut Expr) {
    if !is_condition(expression) {
        let value = std::mem::replace(expression, null());
        *expression = call(TRUTH, vec![value]);
    }
}

/// Makes 0 or 1 of a condition that is selected, unless it is a null, which has no type yet.
fn selected(item: &mut SelectItem) {
    if let SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. } = item
        && !matches!(value, Expr::Value(value) if value.value == Value::Null)
    {
        as_number(value);
    }
}

/// Makes 0 or 1 of an expression that is a condition.
fn as_number(expression: &mut Expr) {
    if is_condition(expression) {
        let value = std::mem::replace(expression, null());
        *expression = cast(value, ast::DataType::BigInt(None));
    }
}

fn is_condition(expression: &Expr) -> bool {
    use BinaryOperator as Op;
    match expression {
        Expr::Nested(inner) => is_condition(inner),
        Expr::BinaryOp { op, .. } => matches!(
            op,
            Op::And
                | Op::Or
                | Op::Eq
                | Op::NotEq
                | Op::Lt
                | Op::LtEq
                | Op::Gt
                | Op::GtEq
                | Op::Spaceship
                | Op::PGRegexMatch
                | Op::PGRegexIMatch
                | Op::PGRegexNotMatch
                | Op::PGRegexNotIMatch
        ),
        Expr::UnaryOp { op, .. } => *op == UnaryOperator::Not,
        Expr::Value(value) => matches!(value.value, Value::Boolean(_) | Value::Null),
        Expr::Function(function) => function.name == named(TRUTH),
        Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsTrue(_)
        | Expr::IsNotTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsNotFalse(_)
        | Expr::IsDistinctFrom(..)
        | Expr::IsNotDistinctFrom(..)
        | Expr::InList { .. }
        | Expr::InSubquery { .. }
        | Expr::Between { .. }
        | Expr::Like { .. }
        | Expr::ILike { .. }
        | Expr::SimilarTo { .. }
        | Expr::Exists { .. } => true,
        _ => false,
    }
}

/// Whether an expression is text for sure.
fn is_text(expression: &Expr) -> bool {
    match expression {
        Expr::Value(value) => matches!(value.value, Value::SingleQuotedString(_)),
        Expr::BinaryOp { op, .. } => *op == BinaryOperator::StringConcat,
        _ => false,
    }
}

/// Whether an expression is a number other than 0.
fn is_number(expression: &Expr) -> bool {
    match expression {
        Expr::Value(value) => {
            matches!(&value.value, Value::Number(digits, _) if digits.parse().is_ok_and(|it: f64| it != 0.0))
        }
        _ => false,
    }
}

fn take(expression: &mut Box<Expr>) -> Box<Expr> {
    std::mem::replace(expression, Box::new(null()))
}

fn null() -> Expr {
    Expr::Value(Value::Null.into())
}

pub(super) fn number(text: &str) -> Expr {
    Expr::Value(Value::Number(text.to_owned(), false).into())
}

fn named(name: &str) -> ObjectName {
    ObjectName::from(vec![Ident::new(name)])
}

pub(super) fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(left),
        op,
        right: Box::new(right),
    }
}

fn cast(value: Expr, data_type: ast::DataType) -> Expr {
    Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(value),
        data_type,
        array: false,
        format: None,
    }
}

fn case(test: Expr, result: Expr, otherwise: Option<Expr>) -> Expr {
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![CaseWhen {
            condition: test,
            result,
        }],
        else_result: otherwise.map(Box::new),
    }
}

pub(super) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let arguments = arguments
        .into_iter()
        .map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value)));
    Expr::Function(Function {
        name: named(name),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments.collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn broken(message: String) -> ControlFlow<DataFusionError> {
    ControlFlow::Break(DataFusionError::Plan(message))
}

struct Placeholders<'a> {
    function: &'a str,
    arguments: &'a [(String, DataType)],
}

impl VisitorMut for Placeholders<'_> {
    type Break = DataFusionError;

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<DataFusionError> {
        let Expr::Value(value) = expression else {
            return ControlFlow::Continue(());
        };
        let Value::Placeholder(placeholder) = &mut value.value else {
            return ControlFlow::Continue(());
        };
        *placeholder = placeholder.to_lowercase();
        let is_it = |(name, _): &&(String, DataType)| placeholder.strip_prefix('$') == Some(name);
        let kind = match self.arguments.iter().find(is_it) {
            Some((_, DataType::Int64)) => ast::DataType::BigInt(None),
            Some((_, DataType::Float64)) => ast::DataType::Double(ast::ExactNumberInfo::None),
            Some((_, DataType::Binary)) => ast::DataType::Bytea,
            Some(_) => ast::DataType::Varchar(None),
            None => {
                return broken(format!(
                    "the function `{}` has no argument `{placeholder}`",
                    self.function
                ));
            }
        };
        let value = std::mem::replace(expression, null());
        *expression = cast(value, kind);
        ControlFlow::Continue(())
    }
}
