//! A tenant and the key that a test speaks as.

use counterfoil_domain::id::{KeyId, TenantId};
use counterfoil_domain::key::{ApiKey, KEY_RANDOM_BYTES_LEN, Pepper, Scope};
use counterfoil_store::Store;
use counterfoil_store::key::KeyRow;
use uuid::Uuid;

/// The secret of every installation under test.
pub const PEPPER: [u8; 32] = [7; 32];

/// Creates a tenant with a key that may do everything, and returns both.
///
/// # Errors
/// The database refuses.
pub async fn create_tenant(store: &Store, name: &str) -> anyhow::Result<(TenantId, String)> {
    let tenant = TenantId(Uuid::now_v7());
    store.create_tenant(tenant, name).await?;
    let mut random = [0; KEY_RANDOM_BYTES_LEN];
    random[..16].copy_from_slice(tenant.0.as_bytes());
    let key = ApiKey::from_random(random);
    let row = KeyRow {
        tenant,
        id: KeyId(Uuid::now_v7()),
        prefix: key.prefix().into(),
        hash: key.hash(&Pepper::new(PEPPER)),
        scope: Scope::Admin.name().into(),
        label: "test".into(),
        created_at: chrono::Utc::now(),
        revoked_at: None,
    };
    store.create_key(&row).await?;
    Ok((tenant, key.to_string()))
}
