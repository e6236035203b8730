//! Data, to the standard output: a table for people, or the API's own JSON, one document a command.

use std::io::Write as _;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde_json::Value;

use crate::timeline::mark;

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Prints a command's data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    format: Format,
}

/// One column of a list, or one line of a record: its title, and where in the JSON its value is.
pub(crate) struct Column {
    title: &'static str,
    pointer: &'static str,
    form: Form,
    /// What stands for a value that is not there.
    otherwise: &'static str,
}

enum Form {
    Plain,
    /// The beginning of a digest says which one it is.
    Digest,
    /// A state, with the sign of its kind.
    State,
    /// A time, to the second.
    Time,
}

impl Column {
    pub(crate) const fn plain(title: &'static str, pointer: &'static str) -> Self {
        Self { title, pointer, form: Form::Plain, otherwise: "" }
    }

    pub(crate) const fn digest(title: &'static str, pointer: &'static str) -> Self {
        Self { title, pointer, form: Form::Digest, otherwise: "" }
    }

    pub(crate) const fn state(title: &'static str, pointer: &'static str) -> Self {
        Self { title, pointer, form: Form::State, otherwise: "" }
    }

    pub(crate) const fn time(title: &'static str, pointer: &'static str) -> Self {
        Self { title, pointer, form: Form::Time, otherwise: "" }
    }

    /// The same, with what is said where there is no value.
    pub(crate) const fn or(self, otherwise: &'static str) -> Self {
        Self { otherwise, ..self }
    }

    fn cell(&self, item: &Value) -> String {
        const DIGEST_SIGNS_LEN: usize = 12;
        let text = item.pointer(self.pointer).map(plain).unwrap_or_default();
        if text.is_empty() {
            return self.otherwise.to_owned();
        }
        match self.form {
            Form::Plain => text,
            Form::Digest => text.chars().take(DIGEST_SIGNS_LEN).collect(),
            Form::State => format!("{} {text}", mark(&text)),
            Form::Time => text.parse::<DateTime<Utc>>().map_or(text, spoken_time),
        }
    }
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Prints `value`, or for people what `text` says of it.
    pub(crate) fn show(self, value: &Value, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        match self.format {
            Format::Json => json(value),
            Format::Table => write(&text()),
        }
    }

    /// Prints a page of a list; says on the standard error how to see more.
    pub(crate) fn list(self, page: &Value, columns: &[Column]) -> anyhow::Result<()> {
        let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
        self.show(page, || table(columns, items))?;
        if items.is_empty() && self.format == Format::Table {
            anstream::eprintln!("there are none");
        }
        if let Some(cursor) = page["next"].as_str() {
            anstream::eprintln!("there are more: --after {cursor}");
        }
        Ok(())
    }

    /// Prints one record, a line for each of its values that it has.
    pub(crate) fn record(self, record: &Value, lines: &[Column]) -> anyhow::Result<()> {
        self.show(record, || fields(record, lines))
    }
}

/// One line for each value that is there, titles before values.
pub(crate) fn fields(record: &Value, lines: &[Column]) -> String {
    let width = lines.iter().map(|line| line.title.len()).max().unwrap_or_default();
    let filled =
        lines.iter().map(|line| (line.title, line.cell(record))).filter(|(_, cell)| !cell.trim().is_empty());
    let lines: Vec<String> = filled
        .map(|(title, cell)| format!("{title:width$}  {}", hung(&cell, &format!("{:width$}  ", ""))))
        .collect();
    lines.join("\n")
}

/// A line for each item, under the titles; nothing if there is none.
pub(crate) fn table(columns: &[Column], items: &[Value]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(columns.iter().map(|column| column.title.to_uppercase()));
    for item in items {
        table.add_row(columns.iter().map(|column| one_line(&column.cell(item))));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// A foreign text that stays on its line: what it holds to move about a terminal is shown instead of done.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().fold(String::new(), |mut line, character| {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
        line
    })
}

/// A foreign text of several lines, each behind `indent`, so that none of them looks like a line of ours.
pub(crate) fn hung(text: &str, indent: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| one_line(&line.replace('\t', "    "))).collect();
    lines.join(&format!("\n{indent}"))
}

/// A time as a person reads it.
pub(crate) fn spoken_time(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A value in one line, without quotes around a text.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// Prints a JSON document.
pub(crate) fn json(value: &Value) -> anyhow::Result<()> {
    write(&format!("{value:#}"))
}

/// Prints a text and the end of its line.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = anstream::stdout();
    if text.is_empty() {
        return Ok(());
    }
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}
