//! Scalar functions that take values of any type, as SQLite's do.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility, lit,
};
use datafusion::prelude::cast;
use datafusion::scalar::ScalarValue;

use super::dates;

/// The key in the metadata of a field that says that its text stands for a value of any type.
pub(super) const ANY_TYPE: &str = "ferretto.any_type";

/// Whether a type is text.
pub(super) fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, of) => is_text(of),
        _ => false,
    }
}

/// Computes a column from columns of the same number of rows.
pub(super) type Of = fn(&[ArrayRef], usize) -> Result<ArrayRef>;

/// A function.
#[derive(Debug, Clone)]
pub(super) struct Scalar {
    name: &'static str,
    aliases: Vec<String>,
    /// How many values it takes.
    counts: RangeInclusive<usize>,
    returns: DataType,
    of: Of,
    signature: Signature,
    /// The types of values for which it is called. Of others, it is a cast.
    is_called_for: fn(&DataType) -> bool,
    /// What its text stands for.
    result: Stands,
    /// Which value may be the time at which a statement runs.
    now: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    ForItself,
    ForAnyType,
}

impl Scalar {
    /// Makes a function of its values alone.
    pub(super) fn new(
        name: &'static str,
        counts: RangeInclusive<usize>,
        returns: DataType,
        of: Of,
    ) -> Scalar {
        Scalar {
            name,
            aliases: Vec::new(),
            counts,
            returns,
            of,
            signature: Signature::variadic_any(Volatility::Immutable),
            is_called_for: |_| true,
            result: Stands::ForItself,
            now: None,
        }
    }

    /// Says that the function is a cast of values of other types than these. DataFusion knows casts, and so looks for their values in the tables.
    pub(super) fn cast_unless(mut self, is_called_for: fn(&DataType) -> bool) -> Scalar {
        self.is_called_for = is_called_for;
        self
    }

    /// Gives the function another name beside its own.
    pub(super) fn or(mut self, alias: &str) -> Scalar {
        self.aliases.push(alias.to_owned());
        self
    }

    /// Says that the text which the function gives stands for a value of any type, so that it is compared with numbers as a number.
    pub(super) fn of_any_type(mut self) -> Scalar {
        self.result = Stands::ForAnyType;
        self
    }

    /// Says that the function depends on the time at which a statement runs, which the value at this place may be. It counts as volatile, so that DataFusion
    /// does not compute it before [`Scalar::fix_now`].
    pub(super) fn of_now(mut self, place: usize) -> Scalar {
        self.signature = of_any_values(Volatility::Volatile);
        self.now = Some(place);
        self
    }

    /// Puts the time at which the statement began in the place of a `'now'`: the statement has one time for all its rows. Returns the function that does not
    /// depend on the present; `None` if only the rows tell whether this one does.
    fn fix_now(&self, arguments: &mut Vec<Expr>, context: &SimplifyContext) -> Result<Option<Scalar>> {
        let (Some(place), Some(now)) = (self.now, context.query_execution_start_time()) else {
            return Ok(None);
        };
        // Without a time, it is the present one.
        if arguments.len() == place {
            arguments.push(lit("now"));
        }
        let mut modifier = None;
        match arguments.get_mut(place) {
            Some(Expr::Literal(value, _)) => {
                let text = value.try_as_str().flatten();
                let exact = text.and_then(dates::now);
                if let Some(dates::Now::Milliseconds) = exact {
                    modifier = text.map(lit);
                }
                if exact.is_some() {
                    *value = ScalarValue::Utf8(Some(dates::as_read(now.naive_utc())));
                }
            }
            Some(other) if is_text(&context.get_data_type(other)?) => return Ok(None),
            _ => {}
        }
        if let Some(modifier) = modifier {
            arguments.insert(place + 1, modifier);
        }
        Ok(Some(Scalar {
            now: None,
            signature: of_any_values(Volatility::Immutable),
            ..self.clone()
        }))
    }
}

/// Takes any values, and also none.
fn of_any_values(volatility: Volatility) -> Signature {
    Signature::one_of(
        vec![TypeSignature::VariadicAny, TypeSignature::Nullary],
        volatility,
    )
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.name == other.name && self.now == other.now
    }
}

impl Eq for Scalar {}

impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Scalar {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        if self.counts.contains(&arguments.len()) {
            return Ok(self.returns.clone());
        }
        let (least, most) = (*self.counts.start(), *self.counts.end());
        let takes = match most {
            usize::MAX => format!("{least} values or more"),
            _ if least == most => format!("{least} values"),
            _ => format!("{least} to {most} values"),
        };
        plan_err!("{} takes {takes}, not {}", self.name, arguments.len())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let kinds = arguments.arg_fields.iter().map(|field| field.data_type().clone());
        let kind = self.return_type(&kinds.collect::<Vec<_>>())?;
        let field = Field::new(self.name, kind, true);
        Ok(Arc::new(match self.result {
            Stands::ForItself => field,
            Stands::ForAnyType => field.with_metadata(HashMap::from([(ANY_TYPE.to_owned(), String::new())])),
        }))
    }

    fn simplify(&self, mut arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        if let Some(fixed) = self.fix_now(&mut arguments, context)? {
            return Ok(ExprSimplifyResult::Simplified(
                ScalarUDF::from(fixed).call(arguments),
            ));
        }
        match arguments.pop() {
            Some(value) if !(self.is_called_for)(&context.get_data_type(&value)?) => {
                Ok(ExprSimplifyResult::Simplified(cast(value, self.returns.clone())))
            }
            last => {
                arguments.extend(last);
                Ok(ExprSimplifyResult::Original(arguments))
            }
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_one = arguments
            .args
            .iter()
            .all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_one { 1 } else { arguments.number_rows };
        let columns = arguments
            .args
            .iter()
            .map(|value| value.to_array(rows))
            .collect::<Result<Vec<_>>>()?;
        let result = (self.of)(&columns, rows)?;
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?),
            false => ColumnarValue::Array(result),
        })
    }
}
