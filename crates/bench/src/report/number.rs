//! Formats numbers for people, and summarizes the rounds of a measurement.

/// The median of several rounds, and their range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median. For an even number of values, the mean of the middle two.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The number of values.
    pub count: usize,
}

impl Spread {
    /// The spread of the finite values. `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = values.len();
        let median = f64::midpoint(values[(count - 1) / 2], values[count / 2]);
        Some(Spread { median, min, max, count })
    }
}

/// A number with three significant digits, or with all digits before the point.
pub fn significant(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        size if size >= 1e15 || (size > 0.0 && size < 0.0005) => return format!("{value:.2e}"),
        size if size == 0.0 || size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    grouped(&format!("{value:.decimals$}"))
}

/// A number at an axis, as short as possible.
pub fn tick(value: f64) -> String {
    let size = value.abs();
    let (scaled, suffix) = match size {
        size if size >= 1e15 || (size > 0.0 && size < 0.9e-4) => return format!("{value:.0e}"),
        size if size >= 1e12 => (value / 1e12, " T"),
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    // Sums of decimal steps can leave a negative zero.
    let text = if text == "-0" { "0" } else { text };
    format!("{}{suffix}", grouped(text))
}

/// A count with separated thousands.
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Puts a comma between thousands.
fn grouped(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, rest) = digits.find('.').map_or((digits, ""), |at| digits.split_at(at));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_sensible_digits() {
        let cases = [
            (0.0, "0"),
            (0.000_04, "4.00e-5"),
            (0.0123, "0.012"),
            (1.0, "1.00"),
            (9.999, "10.0"),
            (12.345, "12.3"),
            (99.96, "100"),
            (1234.5, "1,234"),
            (500_000.0, "500,000"),
            (1e300, "1.00e300"),
            (-2.5, "-2.50"),
        ];
        for (value, text) in cases {
            assert_eq!(significant(value), text);
        }
    }

    #[test]
    fn ticks_are_short() {
        let cases = [
            (0.0, "0"),
            (-1e-17, "-1e-17"),
            (0.001, "0.001"),
            (0.30000000000000004, "0.3"),
            (20_000.0, "20,000"),
            (1_500_000.0, "1.5 M"),
            (2e9, "2 G"),
            (1e18, "1e18"),
        ];
        for (value, text) in cases {
            assert_eq!(tick(value), text);
        }
    }

    #[test]
    fn a_spread_is_of_numbers_only() {
        let spread = Spread::of([3.0, f64::NAN, 1.0, f64::INFINITY, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0, count: 3 });
        assert_eq!(Spread::of([1.0, 4.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
