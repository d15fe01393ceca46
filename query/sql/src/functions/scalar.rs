//! Scalar functions that take values of any type, as SQLite's do.

use std::ops::RangeInclusive;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::cast;
use datafusion::scalar::ScalarValue;

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
#[derive(Debug)]
pub(super) struct Scalar {
    name: &'static str,
    aliases: Vec<String>,
    /// How many values it takes.
    counts: RangeInclusive<usize>,
    returns: DataType,
    of: Of,
    signature: Signature,
    /// What a call becomes whose value is no text.
    of_others: Others,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Call,
    Cast,
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
            of_others: Others::Call,
        }
    }

    /// Says that the function is a cast of what is no text, which reaches the tables then.
    pub(super) fn cast(mut self) -> Scalar {
        self.of_others = Others::Cast;
        self
    }

    /// Gives the function another name beside its own.
    pub(super) fn or(mut self, alias: &str) -> Scalar {
        self.aliases.push(alias.to_owned());
        self
    }

    /// Says that the function depends on the time at which a statement runs.
    pub(super) fn of_now(mut self) -> Scalar {
        self.signature = Signature::variadic_any(Volatility::Stable);
        self
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.name == other.name
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

    fn simplify(&self, mut arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match arguments.pop() {
            Some(value) if self.of_others == Others::Cast && !is_text(&context.get_data_type(&value)?) => {
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
