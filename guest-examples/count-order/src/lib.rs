use counterfoil_sdk::prelude::*;

#[derive(Deserialize, JsonSchema)]
struct Order {
    order: String,
    cents: u64,
}

#[derive(Serialize, JsonSchema)]
struct Counted {
    orders: u64,
}

/// Counts an order, and tells whoever listens.
#[block(effects(emit, storage))]
fn count_order(input: Order) -> Result<Counted, Failure> {
    let before: u64 = match storage::get("orders").send()? {
        Some(orders) => orders.json()?,
        None => 0,
    };
    let orders = before + 1;
    storage::put("orders").json(&orders)?.send()?;
    let said = json!({ "cents": input.cents, "orders": orders });
    emit::event("order.counted").record(input.order).json(&said)?.send()?;
    Ok(Counted { orders })
}
