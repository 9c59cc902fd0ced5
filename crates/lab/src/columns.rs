//! Records as columns, a row per run, for Arrow and Parquet: data frames load them with one call.
//!
//! The columns are those of a record in the order below, then one for each factor of the matrix under its name, then one for each figure
//! under its key. A figure without a value is null, one that never occurred infinite. The version of this layout is in the schema's
//! metadata.

use std::{fs::File, path::Path, sync::Arc};

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::properties::WriterProperties,
};

use crate::{
    figure::Figure,
    journal::{Damage, Records},
    record::{Manifest, ReadError, Record, RunOutcome, line},
    scenario::CELL,
};

/// Version of the layout, in the schema's metadata under `schema`.
pub const COLUMNS_SCHEMA: &str = "tiderace-lab-columns/1";

/// Rows that are held in memory while a file is converted.
const ROWS: usize = 8_192;

/// Records that cannot be turned into columns.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    /// The records cannot be read, or the file not written.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Arrow refuses them.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// Parquet refuses them, or the file cannot be written.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
}

/// Names of a matrix's factors, in the order of their columns.
pub fn factors(manifest: &Manifest) -> Vec<String> {
    let cell = (!manifest.scenario.cells.is_empty()).then(|| CELL.to_owned());
    cell.into_iter().chain(manifest.scenario.factors.keys().cloned()).collect()
}

/// Records as one batch. With `lines` the last column, `record`, holds each record as its line in a file.
///
/// # Errors
/// When Arrow refuses them, which it does not.
pub fn batch(factors: &[String], records: &[Record], lines: bool) -> Result<RecordBatch, ArrowError> {
    let text = |read: &dyn Fn(&Record) -> Option<String>| -> ArrayRef {
        Arc::new(records.iter().map(read).collect::<StringArray>())
    };
    let whole = |read: &dyn Fn(&Record) -> u64| -> ArrayRef {
        Arc::new(records.iter().map(|record| Some(read(record))).collect::<UInt64Array>())
    };
    let real = |read: &dyn Fn(&Record) -> Option<f64>| -> ArrayRef {
        Arc::new(records.iter().map(read).collect::<Float64Array>())
    };
    let failed = |record: &Record| match &record.outcome {
        RunOutcome::Valid => None,
        RunOutcome::Failed(reason) => Some(reason.clone()),
    };
    let named = |name: &str, array: ArrayRef| (name.to_owned(), array);
    let mut columns = vec![
        named("run", whole(&|record| record.run)),
        named("scenario", text(&|record| Some(record.scenario.clone()))),
        named("digest", text(&|record| Some(record.digest.clone()))),
        named("contender", text(&|record| Some(record.contender.name.clone()))),
        named("version", text(&|record| Some(record.contender.version.clone()))),
        named("seed", whole(&|record| record.seed)),
        named("failed", text(&failed)),
        named("virtual_seconds", real(&|record| Some(record.virtual_seconds))),
        named("events", whole(&|record| record.events)),
        named("trace_hash", text(&|record| Some(record.trace.hash.clone()))),
        named("packets", whole(&|record| record.trace.packets)),
        named("link_offered", whole(&|record| record.link.offered)),
        named("link_offered_bytes", whole(&|record| record.link.offered_bytes)),
        named("link_dropped_queue", whole(&|record| record.link.dropped_queue)),
        named("link_dropped_loss", whole(&|record| record.link.dropped_loss)),
        named("link_dropped_other", whole(&|record| record.link.dropped_other)),
    ];
    for factor in factors {
        columns.push(named(factor, text(&|record| record.point.get(factor).map(ToString::to_string))));
    }
    for figure in Figure::all() {
        let value = |record: &Record| {
            record.figures.get(&figure)?.ranked(figure).filter(|_| record.outcome == RunOutcome::Valid)
        };
        columns.push(named(figure.key(), real(&value)));
    }
    if lines {
        columns.push(named("record", text(&|record| line(record).ok())));
    }
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), nullable(name))).collect();
    let about: std::collections::HashMap<String, String> = [("schema".to_owned(), COLUMNS_SCHEMA.to_owned())].into();
    RecordBatch::try_new(
        Arc::new(Schema::new_with_metadata(fields, about)),
        columns.into_iter().map(|(_, array)| array).collect(),
    )
}

/// Returns whether a column may have no value.
fn nullable(name: &str) -> bool {
    Figure::from_key(name).is_some() || name.contains('.') || matches!(name, "failed" | "record")
}

/// A batch as an Arrow IPC stream.
///
/// # Errors
/// When Arrow refuses it, which it does not.
pub fn ipc(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    writer.finish()?;
    writer.into_inner()
}

/// All records of a file as one batch.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path, lines: bool) -> Result<(RecordBatch, Damage), ColumnsError> {
    let (manifest, mut source) = Records::open(path)?;
    let records = source.by_ref().collect::<Result<Vec<_>, _>>().map_err(ReadError::from)?;
    Ok((batch(&factors(&manifest), &records, lines)?, source.damage))
}

/// Writes the records of a file as Parquet, zstd-compressed, a few thousand runs at a time.
///
/// # Errors
/// When one cannot be read or the other not be written.
pub fn write_parquet(records: &Path, target: &Path) -> Result<Damage, ColumnsError> {
    let (manifest, mut source) = Records::open(records)?;
    let factors = factors(&manifest);
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let file = File::create(target).map_err(ReadError::from)?;
    let mut writer = ArrowWriter::try_new(file, batch(&factors, &[], false)?.schema(), Some(properties))?;
    loop {
        let rows = source.by_ref().take(ROWS).collect::<Result<Vec<_>, _>>().map_err(ReadError::from)?;
        if rows.is_empty() {
            break;
        }
        writer.write(&batch(&factors, &rows, false)?)?;
    }
    writer.close()?;
    Ok(source.damage)
}

/// The types of the columns by name, for documentation and tests.
pub fn types(batch: &RecordBatch) -> Vec<(String, DataType)> {
    let schema = batch.schema();
    schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
}

#[cfg(test)]
mod tests {
    use arrow_array::{Array, cast::AsArray, types::Float64Type};

    use super::*;
    use crate::{
        campaign::{Effort, one},
        plan::Plan,
        scenario::{Overrides, load},
    };

    #[test]
    fn a_row_per_run_and_null_where_nothing_was_measured() {
        let mut scenario = load("mobile").unwrap();
        scenario.factors.insert("path.rtt".to_owned(), serde_json::from_str(r#"["20 ms", "200 ms"]"#).unwrap());
        let short = Overrides {
            duration: Some(units::Duration::from_secs(1)),
            seeds: Some(1),
            congestion: vec!["cubic".to_owned()],
            ..Overrides::default()
        };
        let plan = Plan::new(short.apply(scenario).unwrap()).unwrap();
        let records: Vec<Record> = (0..plan.len()).map(|run| one(&plan, run, &Effort::default()).unwrap()).collect();
        let batch = batch(&["path.rtt".to_owned()], &records, true).unwrap();
        assert_eq!(batch.num_rows(), 2);
        let rtt = batch.column_by_name("path.rtt").unwrap().as_string::<i32>();
        assert_eq!([rtt.value(0), rtt.value(1)], ["20 ms", "200 ms"]);
        let goodput = batch.column_by_name("goodput").unwrap().as_primitive::<Float64Type>();
        let expected = records[1].figures[&Figure::Goodput].value.unwrap();
        assert!((goodput.value(1) - expected).abs() < 1e-9);
        assert!(batch.column_by_name("request_p50").unwrap().is_null(0));
        assert!(batch.column_by_name("record").unwrap().as_string::<i32>().value(0).contains("\"check\":\""));
        assert!(ipc(&batch).unwrap().len() > 1_000 && types(&batch).len() > 50);
    }
}
