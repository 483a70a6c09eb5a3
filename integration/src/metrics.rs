// SPDX-License-Identifier: Apache-2.0

//! Reading a Prometheus text page.

use std::collections::BTreeMap;

/// Series by name with labels, as on the page, with their values.
pub type Series = BTreeMap<String, f64>;

/// The router's own series on `page`.
#[must_use]
pub fn regime_series(page: &str) -> Series {
    page.lines()
        .filter(|line| line.starts_with("regime_router_"))
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_routers_own_series_are_read() {
        let page = "# HELP regime_router_a x\nregime_router_a{worker=\"1 2\"} 3\nother 4\n";
        let expected = Series::from([("regime_router_a{worker=\"1 2\"}".to_owned(), 3.0)]);
        assert_eq!(regime_series(page), expected);
    }
}
