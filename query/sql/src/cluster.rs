//! What the processes of a cluster need so that they run plans of a [`Database`](crate::Database): a session, and a codec for what its plans have of our own.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{TableReference, internal_err};
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::logical_expr::{Extension, LogicalPlan, ScalarUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{
    AsExecutionPlan, PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalPlanNode;

use crate::database::Runs;
use crate::each_trace::{EachTrace, EachTracePlanner};
use crate::functions;
use crate::many::{FIRST_ID, FirstId};

/// What an encoded [`EachTrace`] begins with. No message of Ballista's does: its first field has a length, and that of an `E` has four bytes.
const EACH_TRACE: &[u8] = b"EachTrace";

/// Returns a session that knows the functions for tracing, and plans for processes that take the parts of a plan each to itself.
pub fn session(config: SessionConfig) -> SessionState {
    let runs = Runs::Elsewhere;
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_query_planner(Arc::new(EachTracePlanner { runs }))
        .build();
    let context = SessionContext::new_with_state(state);
    functions::register(&context);
    context.state()
}

/// A codec that also knows the parts of plans that are our own. The one within does the rest.
#[derive(Debug)]
pub struct Codec<C>(pub C);

fn encode_function(function: &ScalarUDF, buffer: &mut Vec<u8>) -> Option<Result<()>> {
    let first_id = function.inner().downcast_ref::<FirstId>()?;
    Some(first_id.encode().map(|encoded| buffer.extend(encoded)))
}

fn decode_function(name: &str, encoded: &[u8]) -> Option<Result<Arc<ScalarUDF>>> {
    (name == FIRST_ID).then(|| Ok(Arc::new(FirstId::decode(encoded)?.into())))
}

impl<C: LogicalExtensionCodec> LogicalExtensionCodec for Codec<C> {
    fn try_decode(&self, buffer: &[u8], inputs: &[LogicalPlan], context: &TaskContext) -> Result<Extension> {
        self.0.try_decode(buffer, inputs, context)
    }

    fn try_encode(&self, node: &Extension, buffer: &mut Vec<u8>) -> Result<()> {
        self.0.try_encode(node, buffer)
    }

    fn try_decode_table_provider(
        &self,
        buffer: &[u8],
        table: &TableReference,
        schema: SchemaRef,
        context: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        self.0.try_decode_table_provider(buffer, table, schema, context)
    }

    fn try_encode_table_provider(
        &self,
        table: &TableReference,
        node: Arc<dyn TableProvider>,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        self.0.try_encode_table_provider(table, node, buffer)
    }

    fn try_decode_file_format(
        &self,
        buffer: &[u8],
        context: &TaskContext,
    ) -> Result<Arc<dyn FileFormatFactory>> {
        self.0.try_decode_file_format(buffer, context)
    }

    fn try_encode_file_format(&self, buffer: &mut Vec<u8>, node: Arc<dyn FileFormatFactory>) -> Result<()> {
        self.0.try_encode_file_format(buffer, node)
    }

    fn try_decode_udf(&self, name: &str, encoded: &[u8]) -> Result<Arc<ScalarUDF>> {
        decode_function(name, encoded).unwrap_or_else(|| self.0.try_decode_udf(name, encoded))
    }

    fn try_encode_udf(&self, function: &ScalarUDF, buffer: &mut Vec<u8>) -> Result<()> {
        match encode_function(function, buffer) {
            Some(encoded) => encoded,
            None => self.0.try_encode_udf(function, buffer),
        }
    }
}

impl<C: PhysicalExtensionCodec> PhysicalExtensionCodec for Codec<C> {
    fn try_decode(
        &self,
        buffer: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(whole) = buffer.strip_prefix(EACH_TRACE) else {
            return self.0.try_decode(buffer, inputs, context, converter);
        };
        let [rows] = inputs else {
            return internal_err!("a plan for each trace has one input, not {}", inputs.len());
        };
        let whole = PhysicalPlanNode::try_decode(whole)?;
        let context = PhysicalPlanDecodeContext::new(context, self);
        let whole = converter.proto_to_execution_plan(&whole, &context)?;
        Ok(Arc::new(EachTrace::of_rows(whole, Arc::clone(rows))?))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buffer: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(each) = node.downcast_ref::<EachTrace>() else {
            return self.0.try_encode(node, buffer, converter);
        };
        let whole = converter.execution_plan_to_proto(&each.to_send()?, self)?;
        buffer.extend(EACH_TRACE);
        whole.try_encode(buffer)
    }

    fn try_decode_udf(&self, name: &str, encoded: &[u8]) -> Result<Arc<ScalarUDF>> {
        decode_function(name, encoded).unwrap_or_else(|| self.0.try_decode_udf(name, encoded))
    }

    fn try_encode_udf(&self, function: &ScalarUDF, buffer: &mut Vec<u8>) -> Result<()> {
        match encode_function(function, buffer) {
            Some(encoded) => encoded,
            None => self.0.try_encode_udf(function, buffer),
        }
    }
}
