//! Blocks: every upload is an immutable version, named by the digest of its bytes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{Digest, TenantId};
use serde_json::Value;

use crate::error::Row;
use crate::page::Page;
use crate::transaction::begin;
use crate::value::{self, Exact};
use crate::{Store, StoreError};

/// A version of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockVersion {
    /// The block.
    pub name: String,
    /// This version.
    pub digest: Digest,
    /// Size of the component.
    pub bytes_len: u64,
    /// What the block says of itself.
    pub descriptor: Value,
    /// Interfaces that it imports.
    pub imports: Vec<String>,
    /// When it was uploaded last.
    pub uploaded_at: DateTime<Utc>,
}

/// A version of a block that is to be kept.
#[derive(Debug, Clone, Copy)]
pub struct NewBlock<'a> {
    /// The block.
    pub name: &'a str,
    /// This version: the digest of its bytes.
    pub digest: Digest,
    /// The component.
    pub bytes: &'a [u8],
    /// What the block says of itself.
    pub descriptor: &'a Value,
    /// Interfaces that it imports.
    pub imports: &'a [String],
    /// Whether it can be asked what became of an effect.
    pub verifies: bool,
}

impl BlockVersion {
    /// Where a list of blocks goes on after this row.
    pub fn cursor(&self) -> String {
        self.name.clone()
    }
}

struct Columns {
    name: String,
    digest: Vec<u8>,
    bytes_len: i64,
    descriptor: Value,
    imports: Vec<String>,
    uploaded_at: DateTime<Utc>,
}

impl TryFrom<Columns> for BlockVersion {
    type Error = StoreError;

    fn try_from(columns: Columns) -> Result<Self, StoreError> {
        let row = Row { table: "block_versions", id: &columns.name };
        let digest = value::digest(&row, "digest", &columns.digest)?;
        let bytes_len = row.read("bytes_len", u64::try_from(columns.bytes_len))?;
        Ok(Self {
            name: columns.name,
            digest,
            bytes_len,
            descriptor: columns.descriptor,
            imports: columns.imports,
            uploaded_at: columns.uploaded_at,
        })
    }
}

impl Store {
    /// Keeps a version of a block, and makes it the newest. False if the block had this version before.
    pub async fn put_block(&self, tenant: TenantId, block: &NewBlock<'_>) -> Result<bool, StoreError> {
        let NewBlock { name, digest, bytes, descriptor, imports, verifies } = *block;
        let bytes_len =
            i64::try_from(bytes.len()).map_err(|_| StoreError::Unstorable("a component's size"))?;
        let mut tx = begin(self.pool()).await?;
        sqlx::query!(
            // Kept by a version of this program that did not look whether it can be asked, it is looked at again.
            "INSERT INTO components AS kept (tenant_id, digest, bytes, verifies) VALUES ($1, $2, $3, $4)
             ON CONFLICT (tenant_id, digest) DO UPDATE SET verifies = true
             WHERE EXCLUDED.verifies AND NOT kept.verifies",
            tenant.0,
            &digest.0,
            bytes,
            verifies,
        )
        .execute(&mut *tx)
        .await?;
        // An update leaves the system column xmax set.
        let is_new = sqlx::query_scalar!(
            r#"INSERT INTO block_versions (tenant_id, name, digest, bytes_len, descriptor, imports)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (tenant_id, name, digest) DO UPDATE SET uploaded_at = clock_timestamp()
             RETURNING xmax = 0 AS "is_new!""#,
            tenant.0,
            name,
            &digest.0,
            bytes_len,
            Exact(descriptor) as Exact<'_>,
            imports,
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(is_new)
    }

    /// The newest version of each block, by name.
    pub async fn blocks(&self, tenant: TenantId, page: Page) -> Result<Vec<BlockVersion>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            "SELECT DISTINCT ON (name) name, digest, bytes_len, descriptor, imports, uploaded_at
             FROM block_versions
             WHERE tenant_id = $1 AND ($2::text IS NULL OR name > $2)
             ORDER BY name, uploaded_at DESC
             LIMIT $3",
            tenant.0,
            page.after,
            page.limit(),
        )
        .fetch_all(self.reads())
        .await?;
        columns.into_iter().map(BlockVersion::try_from).collect()
    }

    /// Every version of a block, the newest first.
    pub async fn block_versions(
        &self,
        tenant: TenantId,
        name: &str,
    ) -> Result<Vec<BlockVersion>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            "SELECT name, digest, bytes_len, descriptor, imports, uploaded_at FROM block_versions
             WHERE tenant_id = $1 AND name = $2 ORDER BY uploaded_at DESC",
            tenant.0,
            name,
        )
        .fetch_all(self.reads())
        .await?;
        columns.into_iter().map(BlockVersion::try_from).collect()
    }

    /// The newest version of each of these blocks that exists.
    pub async fn newest_blocks(
        &self,
        tenant: TenantId,
        names: &[String],
    ) -> Result<BTreeMap<String, Digest>, StoreError> {
        let newest = sqlx::query!(
            "SELECT DISTINCT ON (name) name, digest FROM block_versions
             WHERE tenant_id = $1 AND name = ANY ($2)
             ORDER BY name, uploaded_at DESC",
            tenant.0,
            names,
        )
        .fetch_all(self.pool())
        .await?;
        newest
            .into_iter()
            .map(|block| {
                let row = Row { table: "block_versions", id: &block.name };
                let digest = value::digest(&row, "digest", &block.digest)?;
                Ok((block.name, digest))
            })
            .collect()
    }

    /// The bytes of a component.
    pub async fn component(&self, tenant: TenantId, digest: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let bytes = sqlx::query_scalar!(
            "SELECT bytes FROM components WHERE tenant_id = $1 AND digest = $2",
            tenant.0,
            &digest.0,
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(bytes)
    }

    /// What a component says of itself, whichever block it is a version of.
    pub async fn descriptor(&self, tenant: TenantId, digest: Digest) -> Result<Option<Value>, StoreError> {
        let descriptor = sqlx::query_scalar!(
            "SELECT descriptor FROM block_versions WHERE tenant_id = $1 AND digest = $2 LIMIT 1",
            tenant.0,
            &digest.0,
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(descriptor)
    }

    /// What block versions say of themselves, those that the tenant has.
    pub async fn descriptors(
        &self,
        tenant: TenantId,
        digests: &[Digest],
    ) -> Result<Vec<(Digest, Value)>, StoreError> {
        let wanted: Vec<&[u8]> = digests.iter().map(|digest| digest.0.as_slice()).collect();
        let found = sqlx::query!(
            "SELECT DISTINCT ON (digest) name, digest, descriptor FROM block_versions
             WHERE tenant_id = $1 AND digest = ANY ($2)
             ORDER BY digest",
            tenant.0,
            &wanted as &[&[u8]],
        )
        .fetch_all(self.pool())
        .await?;
        found
            .into_iter()
            .map(|block| {
                let row = Row { table: "block_versions", id: &block.name };
                Ok((value::digest(&row, "digest", &block.digest)?, block.descriptor))
            })
            .collect()
    }
}
