//! Header fields.

use counterfoil_domain::outbound::{HEADER_BYTES_MAX, is_host_field, is_token};
use wasmtime::component::Resource;

use super::super::bindings::wasi::http::types::{self, HeaderError};
use super::super::held::Held;
use crate::host::{Abort, HostState};

/// What the host keeps around a field.
const FIELD_BYTES: usize = size_of::<(String, String)>();

/// Fields in the order given; two with one name are two.
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct Fields {
    entries: Vec<(String, String)>,
    held: Held,
    is_immutable: bool,
}

impl Fields {
    pub(super) fn new(held: Held) -> Self {
        Self { entries: Vec::new(), held, is_immutable: false }
    }

    /// Fields that a guest may read.
    pub(super) fn of(entries: Vec<(String, String)>, mut held: Held) -> Result<Self, Abort> {
        held.grow(entries.iter().map(bytes_len).sum())?;
        Ok(Self { entries, held, is_immutable: true })
    }

    pub(super) fn copied(&self, is_immutable: bool) -> Result<Self, Abort> {
        Ok(Self { is_immutable, ..Self::of(self.entries.clone(), self.held.empty())? })
    }

    pub(super) fn into_entries(self) -> Vec<(String, String)> {
        self.entries
    }

    fn add(&mut self, name: &str, value: &[u8]) -> wasmtime::Result<Result<(), HeaderError>> {
        if !is_token(name) || !value.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return Ok(Err(HeaderError::InvalidSyntax));
        }
        // How long a body is, many clients say; the host counts for itself.
        if is_host_field(name) && !name.eq_ignore_ascii_case("content-length") {
            return Ok(Err(HeaderError::Forbidden));
        }
        let entry = (name.to_owned(), String::from_utf8_lossy(value).into_owned());
        let bytes = bytes_len(&entry);
        if self.entries.iter().map(bytes_len).sum::<usize>() + bytes > 2 * HEADER_BYTES_MAX {
            return Err(Abort::FieldsTooLong.into());
        }
        self.held.grow(bytes)?;
        self.entries.push(entry);
        Ok(Ok(()))
    }

    fn remove(&mut self, name: &str) {
        self.entries.retain(|(given, _)| !given.eq_ignore_ascii_case(name));
    }
}

fn bytes_len((name, value): &(String, String)) -> usize {
    name.len() + value.len() + FIELD_BYTES
}

impl types::HostFields for HostState {
    fn new(&mut self) -> wasmtime::Result<Resource<Fields>> {
        Ok(self.wasi.table.push(Fields::new(self.wasi.budget.held()))?)
    }

    fn from_list(
        &mut self,
        entries: Vec<(String, Vec<u8>)>,
    ) -> wasmtime::Result<Result<Resource<Fields>, HeaderError>> {
        let mut fields = Fields::new(self.wasi.budget.held());
        for (name, value) in &entries {
            if let Err(error) = fields.add(name, value)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(self.wasi.table.push(fields)?))
    }

    fn get(&mut self, fields: Resource<Fields>, name: String) -> wasmtime::Result<Vec<Vec<u8>>> {
        let found = self
            .wasi
            .table
            .get(&fields)?
            .entries
            .iter()
            .filter(|(given, _)| given.eq_ignore_ascii_case(&name));
        Ok(found.map(|(_, value)| value.clone().into_bytes()).collect())
    }

    fn has(&mut self, fields: Resource<Fields>, name: String) -> wasmtime::Result<bool> {
        Ok(self.wasi.table.get(&fields)?.entries.iter().any(|(given, _)| given.eq_ignore_ascii_case(&name)))
    }

    fn set(
        &mut self,
        fields: Resource<Fields>,
        name: String,
        values: Vec<Vec<u8>>,
    ) -> wasmtime::Result<Result<(), HeaderError>> {
        let fields = self.wasi.table.get_mut(&fields)?;
        if fields.is_immutable {
            return Ok(Err(HeaderError::Immutable));
        }
        fields.remove(&name);
        for value in values {
            if let Err(error) = fields.add(&name, &value)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn delete(
        &mut self,
        fields: Resource<Fields>,
        name: String,
    ) -> wasmtime::Result<Result<(), HeaderError>> {
        let fields = self.wasi.table.get_mut(&fields)?;
        if fields.is_immutable {
            return Ok(Err(HeaderError::Immutable));
        }
        fields.remove(&name);
        Ok(Ok(()))
    }

    fn append(
        &mut self,
        fields: Resource<Fields>,
        name: String,
        value: Vec<u8>,
    ) -> wasmtime::Result<Result<(), HeaderError>> {
        let fields = self.wasi.table.get_mut(&fields)?;
        if fields.is_immutable { Ok(Err(HeaderError::Immutable)) } else { fields.add(&name, &value) }
    }

    fn entries(&mut self, fields: Resource<Fields>) -> wasmtime::Result<Vec<(String, Vec<u8>)>> {
        let entries = self.wasi.table.get(&fields)?.entries.iter();
        Ok(entries.map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect())
    }

    fn clone(&mut self, fields: Resource<Fields>) -> wasmtime::Result<Resource<Fields>> {
        let copy = self.wasi.table.get(&fields)?.copied(false)?;
        Ok(self.wasi.table.push(copy)?)
    }

    fn drop(&mut self, fields: Resource<Fields>) -> wasmtime::Result<()> {
        self.wasi.table.delete(fields)?;
        Ok(())
    }
}
