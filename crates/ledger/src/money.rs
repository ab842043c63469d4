//! Amounts and currencies. No floats, no unchecked arithmetic.

use std::fmt;

use serde::{Serialize, Serializer};

/// The largest absolute value of an amount or a balance in minor units: 2^53 - 1, the largest integer that every JSON
/// reader holds exactly (RFC 8259, section 6).
pub const MAX_MINOR_UNITS: i64 = 9_007_199_254_740_991;

/// A positive amount in minor units of its currency, 1 to [`MAX_MINOR_UNITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Amount(i64);

impl Amount {
    /// `None` outside 1 to [`MAX_MINOR_UNITS`].
    pub const fn new(minor_units: i64) -> Option<Self> {
        if minor_units >= 1 && minor_units <= MAX_MINOR_UNITS { Some(Self(minor_units)) } else { None }
    }

    /// The amount in minor units.
    pub const fn minor_units(self) -> i64 {
        self.0
    }
}

/// A signed balance in minor units, within ± [`MAX_MINOR_UNITS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Balance(i64);

impl Balance {
    /// Zero, which every account starts from.
    pub const ZERO: Self = Self(0);

    /// `None` outside ± [`MAX_MINOR_UNITS`].
    pub const fn new(minor_units: i64) -> Option<Self> {
        if minor_units >= -MAX_MINOR_UNITS && minor_units <= MAX_MINOR_UNITS { Some(Self(minor_units)) } else { None }
    }

    /// The balance in minor units.
    pub const fn minor_units(self) -> i64 {
        self.0
    }

    /// The balance after a credit; `None` where it would leave the range.
    pub const fn credit(self, amount: Amount) -> Option<Self> {
        match self.0.checked_add(amount.0) {
            Some(sum) => Self::new(sum),
            None => None,
        }
    }

    /// The balance after a debit; `None` where it would leave the range.
    pub const fn debit(self, amount: Amount) -> Option<Self> {
        match self.0.checked_sub(amount.0) {
            Some(difference) => Self::new(difference),
            None => None,
        }
    }
}

/// A currency of ISO 4217 in which money is moved, by its alphabetic code.
///
/// Funds, precious metals, testing codes and unknown codes are not currencies here; CLF is, since prices are set in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency(&'static str);

/// ISO 4217 list one by number of decimal places, each list in alphabetic order.
const CURRENCIES: [(u8, &[&str]); 4] = [
    (
        2,
        &[
            "AED", "AFN", "ALL", "AMD", "AOA", "ARS", "AUD", "AWG", "AZN", "BAM", "BBD", "BDT", "BMD", "BND", "BOB",
            "BRL", "BSD", "BTN", "BWP", "BYN", "BZD", "CAD", "CDF", "CHF", "CNY", "COP", "CRC", "CUP", "CVE", "CZK",
            "DKK", "DOP", "DZD", "EGP", "ERN", "ETB", "EUR", "FJD", "FKP", "GBP", "GEL", "GHS", "GIP", "GMD", "GTQ",
            "GYD", "HKD", "HNL", "HTG", "HUF", "IDR", "ILS", "INR", "IRR", "JMD", "KES", "KGS", "KHR", "KPW", "KYD",
            "KZT", "LAK", "LBP", "LKR", "LRD", "LSL", "MAD", "MDL", "MGA", "MKD", "MMK", "MNT", "MOP", "MRU", "MUR",
            "MVR", "MWK", "MXN", "MYR", "MZN", "NAD", "NGN", "NIO", "NOK", "NPR", "NZD", "PAB", "PEN", "PGK", "PHP",
            "PKR", "PLN", "QAR", "RON", "RSD", "RUB", "SAR", "SBD", "SCR", "SDG", "SEK", "SGD", "SHP", "SLE", "SOS",
            "SRD", "SSP", "STN", "SVC", "SYP", "SZL", "THB", "TJS", "TMT", "TOP", "TRY", "TTD", "TWD", "TZS", "UAH",
            "USD", "UYU", "UZS", "VED", "VES", "WST", "XCD", "XCG", "YER", "ZAR", "ZMW", "ZWG",
        ],
    ),
    (
        0,
        &[
            "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF",
            "XPF",
        ],
    ),
    (3, &["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"]),
    (4, &["CLF"]),
];

impl Currency {
    /// Reads an alphabetic code in upper case; `None` for all others.
    pub fn parse(code: &str) -> Option<Self> {
        CURRENCIES
            .iter()
            .find_map(|(_, codes)| codes.binary_search(&code).ok().and_then(|at| codes.get(at)).copied())
            .map(Self)
    }

    /// The alphabetic code, such as `EUR`.
    pub const fn code(self) -> &'static str {
        self.0
    }

    /// The number of decimal places of a minor unit: JPY 0, EUR 2, KWD 3, CLF 4.
    pub fn exponent(self) -> u8 {
        CURRENCIES.iter().find(|(_, codes)| codes.binary_search(&self.0).is_ok()).map_or(2, |(exponent, _)| *exponent)
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_currency_has_the_exponent_of_its_list_and_lists_are_sorted() {
        for (exponent, codes) in CURRENCIES {
            assert!(codes.is_sorted());
            for code in codes {
                assert_eq!(Currency::parse(code).map(Currency::exponent), Some(exponent), "{code}");
            }
        }
        for (code, exponent) in [("JPY", 0), ("EUR", 2), ("KWD", 3), ("CLF", 4)] {
            assert_eq!(Currency::parse(code).unwrap().exponent(), exponent);
        }
    }

    #[test]
    fn what_is_no_currency_is_refused() {
        for code in ["usd", "XXX", "XTS", "XAU", "BTC", "BOV", "CHE", "USN", "", "EU", "EURO", "ÉUR"] {
            assert_eq!(Currency::parse(code), None, "{code}");
        }
    }

    #[test]
    fn balances_never_wrap() {
        let most = Amount::new(MAX_MINOR_UNITS).unwrap();
        let one = Amount::new(1).unwrap();
        let top = Balance::ZERO.credit(most).unwrap();
        assert_eq!(top.credit(one), None);
        assert_eq!(top.credit(most), None);
        assert_eq!(Balance::ZERO.debit(most).unwrap().debit(one), None);
        for refused in [0, -1, MAX_MINOR_UNITS + 1, i64::MIN, i64::MAX] {
            assert_eq!(Amount::new(refused), None);
        }
    }
}
