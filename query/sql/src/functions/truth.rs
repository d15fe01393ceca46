//! Conditions and numbers, which are one thing in SQLite: `truth(x)` makes a condition of a number, and conditions that meet numbers become 0 or 1.

use std::sync::Arc;

use datafusion::arrow::array::{BooleanArray, Float64Array};
use datafusion::arrow::compute::cast as cast_array;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DFSchema, exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, lit, when,
};
use datafusion::prelude::cast;
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::scalar::{ANY_TYPE, Scalar, is_text};
use super::sqlite;
use super::values::{self, Value, Values};

/// The function's name.
pub(crate) const TRUTH: &str = "truth";

/// `truth(x)`: whether a number is not 0. Of a condition it is the condition itself.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Truth(Signature);

impl Truth {
    pub(super) fn new() -> Truth {
        Truth(Signature::any(1, Volatility::Immutable))
    }
}

impl ScalarUDFImpl for Truth {
    fn name(&self) -> &str {
        TRUTH
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [DataType::Boolean | DataType::Null] => Ok(DataType::Boolean),
            [kind] if kind.is_numeric() => Ok(DataType::Boolean),
            [kind] => plan_err!("a condition is a comparison or a number, not {kind}"),
            _ => plan_err!("{TRUTH} takes one value"),
        }
    }

    /// Takes the function away, so that conditions reach the tables.
    fn simplify(&self, mut arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Some(value) = arguments.pop() else {
            return Ok(ExprSimplifyResult::Original(arguments));
        };
        Ok(ExprSimplifyResult::Simplified(
            match context.get_data_type(&value)? {
                DataType::Boolean => value,
                DataType::Null => cast(value, DataType::Boolean),
                _ => value.not_eq(lit(0_i64)),
            },
        ))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = arguments.args.as_slice() else {
            return exec_err!("{TRUTH} takes one value");
        };
        let value = value.to_array(arguments.number_rows)?;
        let truth: BooleanArray = match value.data_type() {
            DataType::Boolean => as_boolean_array(&value)?.clone(),
            _ => {
                let numbers = cast_array(&value, &DataType::Float64)?;
                let numbers = datafusion::arrow::array::AsArray::as_primitive::<Float64Type>(&numbers);
                numbers.iter().map(|number| number.map(|it| it != 0.0)).collect()
            }
        };
        Ok(ColumnarValue::Array(Arc::new(truth)))
    }
}

/// Makes 0 or 1 of a condition that is compared or computed with a number, and lets texts and numbers be compared.
#[derive(Debug)]
pub(super) struct Numbers;

impl ExprPlanner for Numbers {
    fn plan_binary_op(
        &self,
        mut expression: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator as Op;
        if expression.op == Op::StringConcat {
            for side in [&mut expression.left, &mut expression.right] {
                *side = sqlite::text_of_number(std::mem::take(side), schema)?;
            }
            return Ok(PlannerResult::Original(expression));
        }
        let computes = matches!(
            expression.op,
            Op::Plus | Op::Minus | Op::Multiply | Op::Divide | Op::Modulo
        );
        let compares = matches!(
            expression.op,
            Op::Eq | Op::NotEq | Op::Lt | Op::LtEq | Op::Gt | Op::GtEq | Op::Spaceship
        );
        if compares {
            meet(&mut expression.left, &mut expression.right, schema)?;
        } else if computes {
            for side in [&mut expression.left, &mut expression.right] {
                number_of_condition(side, schema);
            }
        }
        Ok(PlannerResult::Original(expression))
    }
}

/// Makes 0 or 1 of a condition.
fn number_of_condition(value: &mut Expr, schema: &DFSchema) {
    if value.get_type(schema).is_ok_and(|kind| kind == DataType::Boolean) {
        *value = cast(std::mem::take(value), DataType::Int64);
    }
}

/// Whether two values that are compared [meet](meet) without a change.
pub(super) fn are_alike(one: &Expr, other: &Expr, schema: &DFSchema) -> bool {
    let (Ok(one), Ok(other)) = (one.get_type(schema), other.get_type(schema)) else {
        return true;
    };
    let is_number = |kind: &DataType| kind.is_numeric() || *kind == DataType::Boolean;
    !(is_text(&one) && is_number(&other) || is_number(&one) && is_text(&other))
        && (one == DataType::Boolean) == (other == DataType::Boolean)
}

/// Lets two values meet that are compared. Conditions are numbers, unless both are conditions.
pub(super) fn meet(one: &mut Expr, other: &mut Expr, schema: &DFSchema) -> Result<()> {
    let kind = |value: &Expr| value.get_type(schema).unwrap_or(DataType::Null);
    let (DataType::Boolean, DataType::Boolean) = (kind(one), kind(other)) else {
        number_of_condition(one, schema);
        number_of_condition(other, schema);
        return match (kind(one), kind(other)) {
            (text, number) if is_text(&text) && number.is_numeric() => meet_number(one, other, schema),
            (number, text) if is_text(&text) && number.is_numeric() => meet_number(other, one, schema),
            _ => Ok(()),
        };
    };
    Ok(())
}

/// Lets a text and a number meet that are compared, by SQLite's rules. Beside a column of numbers or a cast to one, a text is the number that it is; one that is
/// no number is greater than every number. Beside a column of texts or a cast to text, another number is text. Of others neither is changed, and the text is
/// greater.
fn meet_number(text: &mut Expr, number: &mut Expr, schema: &DFSchema) -> Result<()> {
    let is_any = may_be_number(text, schema);
    if !is_any && !has_type(number) {
        if has_type(text) {
            *number = sqlite::text_of_number(std::mem::take(number), schema)?;
        } else {
            *text = when(std::mem::take(text).is_not_null(), greatest()).end()?;
        }
        return Ok(());
    }
    match text {
        Expr::Literal(value, _) => {
            if let Some(Some(literal)) = value.try_as_str() {
                *text = match values::number(literal) {
                    Some(Value::Int(int)) => lit(int),
                    // Here all numbers are whole. A number with a fraction would be compared with a whole one as if both had 53 bits.
                    Some(Value::Real(real)) if real.abs() >= ONLY_WHOLE && real.abs() < MOST => {
                        lit(real as i64)
                    }
                    Some(Value::Real(real)) => lit(real),
                    _ => greatest(),
                };
            }
        }
        _ => *text = number_of_text().call(vec![std::mem::take(text)]),
    }
    Ok(())
}

/// Whether a value has a type by itself: SQLite's affinity.
fn has_type(value: &Expr) -> bool {
    match value {
        Expr::Column(_) | Expr::OuterReferenceColumn(..) => true,
        Expr::ScalarFunction(call) => [sqlite::TEXT, sqlite::WHOLE, sqlite::REAL].contains(&call.name()),
        Expr::Alias(alias) => has_type(&alias.expr),
        Expr::ScalarSubquery(query) => match query.subquery.as_ref() {
            LogicalPlan::Projection(projection) => projection.expr.first().is_some_and(has_type),
            _ => false,
        },
        _ => false,
    }
}

/// From here on, numbers of 64 bits have no fraction, and here they end as whole numbers.
const ONLY_WHOLE: f64 = (1_u64 << 53) as f64;
const MOST: f64 = (1_u64 << 63) as f64;

/// A value that is greater than the numbers of traces.
fn greatest() -> Expr {
    lit(f64::INFINITY)
}

/// Whether a text is that of a function, perhaps by way of a column, whose text stands for values of any type.
fn may_be_number(text: &Expr, schema: &DFSchema) -> bool {
    let field = text.to_field(schema);
    field.is_ok_and(|(_, field)| field.metadata().contains_key(ANY_TYPE))
}

/// Returns the function that makes of a computed text the number that it is.
pub(super) fn number_of_text() -> ScalarUDF {
    let function = Scalar::new("number_of_text", 1..=1, DataType::Float64, |columns, rows| {
        let texts = Values::new(&columns[0])?;
        let number = |row| {
            Some(match texts.at(row).text().map(|text| values::number(&text)) {
                None => return None,
                Some(Some(number)) => number.real()?,
                Some(None) => f64::INFINITY,
            })
        };
        Ok(Arc::new((0..rows).map(number).collect::<Float64Array>()))
    });
    ScalarUDF::from(function)
}
