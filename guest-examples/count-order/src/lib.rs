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

#[cfg(test)]
mod tests {
    use counterfoil_sdk::testing::*;

    use super::*;

    #[test]
    fn an_order_is_counted_and_told_with_the_step() {
        let mut step = Step::<count_order>::new(json!({ "order": "o-1", "cents": 1200 }));
        step.store("orders", 4);
        assert_eq!(step.run().output(), json!({ "orders": 5 }));
        assert_eq!(step.stored("orders"), Some(json!(5)));
        assert_eq!(step.emitted()[0].data, json!({ "cents": 1200, "orders": 5 }));
    }
}
