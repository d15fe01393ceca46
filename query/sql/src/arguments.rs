//! `extract_arg(arg_set_id, 'key')`: the value of one argument, as the trace processor's function gives it.
//!
//! A column has one type here. So [`Database`](crate::Database) reads the values of the keys that a statement names before it plans the statement, and the
//! type is that of the values: whole numbers, numbers with fractions, or text, which is also what different types have in common.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;

use crate::dialect;
use crate::error::Error;

/// The name of the function.
const NAME: &str = "extract_arg";
/// The most values of a statement's keys, which stay in memory.
const MOST_VALUES: usize = 1 << 26;

/// The tables that the function reads, if this is its name.
pub(crate) fn tables_of(function: &str) -> &'static [&'static str] {
    match function {
        NAME => &["args"],
        _ => &[],
    }
}

/// The values of one key, by the set that has them.
#[derive(Debug)]
enum Values {
    Ints(HashMap<i64, i64>),
    Reals(HashMap<i64, f64>),
    Texts(HashMap<i64, Box<str>>),
}

/// The values of the keys that were named so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arguments {
    keys: Arc<RwLock<HashMap<String, Arc<Values>>>>,
}

impl Arguments {
    /// Adds the function to a session.
    pub(crate) fn register(&self, context: &SessionContext) {
        context.register_udf(ScalarUDF::new_from_impl(Function {
            signature: Signature::any(2, Volatility::Stable),
            arguments: self.clone(),
        }));
    }

    /// Forgets all values. Called when `args` has got other rows.
    pub(crate) fn forget(&self) {
        // What a panic elsewhere has left is still a map.
        self.keys.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Reads the values of the keys that a text names, if it has the function. Every text in quotes counts; one that is no key has no values.
    pub(crate) async fn read_keys_of(
        &self,
        sql: &str,
        context: &SessionContext,
    ) -> std::result::Result<(), Error> {
        if !sql.to_ascii_lowercase().contains(NAME) {
            return Ok(());
        }
        let missing: BTreeSet<String> = {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            let texts = dialect::texts(sql)?.into_iter();
            texts.filter(|text| !keys.contains_key(text)).collect()
        };
        for key in missing {
            let values = Arc::new(values(&key, context).await?);
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            keys.insert(key, values);
        }
        Ok(())
    }

    fn get(&self, key: &ScalarValue) -> Result<Arc<Values>> {
        let Some(Some(key)) = key.try_as_str() else {
            return plan_err!("{NAME}: `{key}` is no key; write it in quotes");
        };
        match self.keys.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            Some(values) => Ok(values.clone()),
            None => plan_err!("{NAME}: the key `{key}` is not in the statement; write it in quotes"),
        }
    }
}

async fn values(key: &str, context: &SessionContext) -> std::result::Result<Values, Error> {
    let quoted = key.replace('\'', "''");
    let sql = format!(
        "select arg_set_id, int_value, real_value, cast(display_value as varchar) as text, cast(value_type as varchar) as type
        from args where key = '{quoted}'"
    );
    let batches = context.sql(&sql).await?.collect().await?;
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    if rows > MOST_VALUES {
        return Err(Error::Source(format!(
            "{NAME}: the key `{key}` has {rows} values, which is too many; join `args` by arg_set_id instead"
        )));
    }
    let (mut ints, mut reals, mut texts) = (HashMap::new(), HashMap::new(), HashMap::new());
    for batch in &batches {
        let column = |at: usize, kind: &DataType| cast(batch.column(at), kind).map_err(DataFusionError::from);
        let (sets, int) = (column(0, &DataType::Int64)?, column(1, &DataType::Int64)?);
        let (real, text) = (column(2, &DataType::Float64)?, column(3, &DataType::Utf8)?);
        let kind = column(4, &DataType::Utf8)?;
        for row in 0..batch.num_rows() {
            let set = sets.as_primitive::<Int64Type>().value(row);
            match kind.as_string::<i32>().value(row) {
                "int" | "uint" | "bool" | "pointer" => {
                    ints.insert(set, int.as_primitive::<Int64Type>().value(row));
                }
                "real" => {
                    reals.insert(set, real.as_primitive::<Float64Type>().value(row));
                }
                _ => {}
            }
            if text.is_valid(row) {
                texts.insert(set, text.as_string::<i32>().value(row).into());
            }
        }
    }
    Ok(match rows {
        0 => Values::Texts(texts),
        _ if ints.len() == texts.len() => Values::Ints(ints),
        _ if reals.len() == texts.len() => Values::Reals(reals),
        _ => Values::Texts(texts),
    })
}

#[derive(Debug)]
struct Function {
    signature: Signature,
    arguments: Arguments,
}

impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        Arc::ptr_eq(&self.arguments.keys, &other.arguments.keys)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        NAME.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("{NAME}: the type depends on the key")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let Some(Some(key)) = arguments.scalar_arguments.get(1) else {
            return plan_err!("{NAME} takes a set of arguments, and a key in quotes");
        };
        let kind = match self.arguments.get(key)?.as_ref() {
            Values::Ints(_) => DataType::Int64,
            Values::Reals(_) => DataType::Float64,
            Values::Texts(_) => DataType::Utf8,
        };
        Ok(Arc::new(Field::new(NAME, kind, true)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [sets, ColumnarValue::Scalar(key)] = arguments.args.as_slice() else {
            return exec_err!("{NAME} takes a set of arguments, and a key in quotes");
        };
        let values = self.arguments.get(key)?;
        let sets = cast(&sets.to_array(arguments.number_rows)?, &DataType::Int64)?;
        let sets = sets.as_primitive::<Int64Type>().iter();
        let found: ArrayRef = match values.as_ref() {
            Values::Ints(values) => {
                Arc::new(sets.map(|set| values.get(&set?).copied()).collect::<Int64Array>())
            }
            Values::Reals(values) => Arc::new(
                sets.map(|set| values.get(&set?).copied())
                    .collect::<Float64Array>(),
            ),
            Values::Texts(values) => Arc::new(
                sets.map(|set| values.get(&set?).map(Box::as_ref))
                    .collect::<StringArray>(),
            ),
        };
        // A plan may be run after `args` was read again, but its type stays.
        Ok(ColumnarValue::Array(cast(&found, arguments.return_type())?))
    }
}
