//! The wire types of `hangscope/1`.

use super::Case;

/// The report as JSON text, ending with a newline. Keys stand in the contract's order.
#[must_use]
pub fn json(case: &Case<'_>) -> String {
    format!("{}\n", serde_json::json!({"schema": "hangscope/1", "headline": case.verdict.headline}))
}
