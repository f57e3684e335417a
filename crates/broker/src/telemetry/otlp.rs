//! Decodes the metrics that clients push: OpenTelemetry's `MetricsData` (OTLP v1), a protobuf message. Only the exported
//! parts are read: values of gauges and sums, with their attributes.
//!
//! ```text
//! MetricsData     1: ResourceMetrics*
//! ResourceMetrics 2: ScopeMetrics*
//! ScopeMetrics    2: Metric*
//! Metric          1: name, 5: Gauge, 7: Sum
//! Gauge           1: NumberDataPoint*
//! Sum             1: NumberDataPoint*, 2: temporality (1: since the last push, 2: since the start)
//! NumberDataPoint 7: KeyValue*, 4: double, 6: sfixed64
//! KeyValue        1: key, 2: AnyValue
//! AnyValue        1: string, 2: bool, 3: int64, 4: double
//! ```
//! The bytes come from a client. No allocation exceeds the size of the bytes, and the bounds below limit what is kept.

/// Bound of the points of one push that are kept. Later points are skipped.
pub const POINTS_MAX: usize = 500;
/// Bounds of a point's attributes, and of the bytes of their keys and values and of a metric's name.
const ATTRIBUTES_MAX: usize = 8;
const KEY_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 200;

/// The bytes are not a valid `MetricsData`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the metrics are not OpenTelemetry's MetricsData")]
pub struct Malformed;

/// The identity of a time series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// The metric's name.
    pub name: String,
    /// The attributes, sorted by key.
    pub attributes: Vec<(String, String)>,
}

/// One value of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The series.
    pub series: Series,
    /// The value.
    pub value: f64,
    /// Whether the value is the increase since the last push.
    pub is_delta: bool,
}

/// One field of a message.
enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

/// The fields of a message, by number.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?)),
            2 => {
                let count = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Field::Bytes(self.take(count)?)
            }
            5 => {
                self.take(4)?;
                Field::Fixed32
            }
            // Groups, which are obsolete, and unknown wire types are refused.
            _ => return Err(Malformed),
        };
        Ok(Some((tag >> 3, field)))
    }

    /// Calls `work` with every message in field `number`.
    fn each(
        mut self,
        number: u64,
        mut work: impl FnMut(Fields<'a>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        while let Some(field) = self.next()? {
            if let (found, Field::Bytes(bytes)) = field
                && found == number
            {
                work(Fields(bytes))?;
            }
        }
        Ok(())
    }
}

/// The points in `bytes`, up to the bound.
pub fn points(bytes: &[u8]) -> Result<Vec<Point>, Malformed> {
    let mut points = Vec::new();
    Fields(bytes).each(1, |of_resource| {
        of_resource.each(2, |of_scope| of_scope.each(2, |metric| read_metric(metric, &mut points)))
    })?;
    Ok(points)
}

fn read_metric(mut metric: Fields, points: &mut Vec<Point>) -> Result<(), Malformed> {
    // The metric is read twice, because its name may come last and the data must not be kept until then.
    let (mut name, mut fields) = (String::new(), Fields(metric.0));
    while let Some(field) = fields.next()? {
        if let (1, Field::Bytes(bytes)) = field {
            name = cut(bytes, NAME_BYTES_MAX)?;
        }
    }
    while let Some(field) = metric.next()? {
        let (kind @ (5 | 7), Field::Bytes(bytes)) = field else { continue };
        let is_sum = kind == 7;
        let mut is_delta = false;
        let mut sum = Fields(bytes);
        while let Some(field) = sum.next()? {
            if let (2, Field::Varint(temporality)) = field {
                is_delta = is_sum && temporality == 1;
            }
        }
        Fields(bytes).each(1, |point| {
            if points.len() < POINTS_MAX
                && let Some((attributes, value)) = read_point(point)?
            {
                points.push(Point { series: Series { name: name.clone(), attributes }, value, is_delta });
            }
            Ok(())
        })?;
    }
    Ok(())
}

type Attributes = Vec<(String, String)>;

fn read_point(mut point: Fields) -> Result<Option<(Attributes, f64)>, Malformed> {
    let (mut attributes, mut value) = (Vec::new(), None);
    while let Some(field) = point.next()? {
        match field {
            (4, Field::Fixed64(bits)) => value = Some(f64::from_bits(bits)),
            // Counters are far below 2^53.
            (6, Field::Fixed64(bits)) => value = Some(bits.cast_signed() as f64),
            (7, Field::Bytes(bytes)) if attributes.len() < ATTRIBUTES_MAX => {
                attributes.push(read_attribute(Fields(bytes))?)
            }
            _ => {}
        }
    }
    attributes.sort();
    attributes.dedup_by(|one, other| one.0 == other.0);
    Ok(value.map(|value| (attributes, value)))
}

fn read_attribute(mut attribute: Fields) -> Result<(String, String), Malformed> {
    let (mut key, mut value) = (String::new(), String::new());
    while let Some(field) = attribute.next()? {
        match field {
            (1, Field::Bytes(bytes)) => key = cut(bytes, KEY_BYTES_MAX)?,
            (2, Field::Bytes(bytes)) => value = read_value(Fields(bytes))?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn read_value(mut any: Fields) -> Result<String, Malformed> {
    let mut value = String::new();
    while let Some(field) = any.next()? {
        value = match field {
            (1, Field::Bytes(bytes)) => cut(bytes, VALUE_BYTES_MAX)?,
            (2, Field::Varint(flag)) => (flag != 0).to_string(),
            (3, Field::Varint(number)) => number.cast_signed().to_string(),
            (4, Field::Fixed64(bits)) => f64::from_bits(bits).to_string(),
            _ => value,
        };
    }
    Ok(value)
}

/// The text in `bytes`, cut to `bytes_max`, without characters that would need quoting in the exported metrics.
fn cut(bytes: &[u8], bytes_max: usize) -> Result<String, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
    let plain = |c: char| if c.is_control() || matches!(c, '"' | '\\') { '_' } else { c };
    Ok(text[..text.floor_char_boundary(bytes_max)].chars().map(plain).collect())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut count = bytes.len();
        while count >= 0x80 {
            out.push(u8::try_from(count & 0x7f).unwrap() | 0x80);
            count >>= 7;
        }
        out.push(u8::try_from(count).unwrap());
        out.extend_from_slice(bytes);
        out
    }

    fn attribute(key: &str, value: &str) -> Vec<u8> {
        field(7, &[field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat())
    }

    /// Encodes a metric with one value, as a gauge or as a sum of this temporality.
    pub fn metric(name: &str, attributes: &[(&str, &str)], value: f64, temporality: Option<u8>) -> Vec<u8> {
        let mut point: Vec<u8> = attributes.iter().flat_map(|(key, value)| attribute(key, value)).collect();
        point.push(4 << 3 | 1);
        point.extend_from_slice(&value.to_le_bytes());
        let mut data = field(1, &point);
        data.extend(temporality.into_iter().flat_map(|temporality| [2 << 3, temporality]));
        field(
            2,
            &[field(1, name.as_bytes()), field(if temporality.is_some() { 7 } else { 5 }, &data)].concat(),
        )
    }

    /// Encodes a whole push.
    pub fn metrics_data(metrics: &[Vec<u8>]) -> Vec<u8> {
        let resource = field(1, &attribute("client", "x"));
        field(1, &[resource, field(2, &metrics.concat())].concat())
    }

    #[test]
    fn numbers_come_with_their_names_and_attributes() {
        let bytes = metrics_data(&[
            metric("a.gauge", &[("topic", "t\"\n"), ("node", "1")], 1.5, None),
            metric("a.sum", &[], 7.0, Some(1)),
            metric("a.total", &[], 9.0, Some(2)),
        ]);
        let found = points(&bytes).unwrap();
        let names: Vec<_> =
            found.iter().map(|point| (point.series.name.as_str(), point.value, point.is_delta)).collect();
        assert_eq!(names, [("a.gauge", 1.5, false), ("a.sum", 7.0, true), ("a.total", 9.0, false)]);
        let attributes = [("node", "1"), ("topic", "t__")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(found[0].series.attributes, attributes);
    }

    #[test]
    fn what_is_kept_is_bounded_and_any_bytes_are_taken() {
        let long = "x".repeat(10_000);
        let one = metric(&long, &[(&long, &long)], 1.0, None);
        let found = points(&metrics_data(&vec![one; POINTS_MAX + 10])).unwrap();
        assert_eq!(found.len(), POINTS_MAX);
        assert_eq!(found[0].series.name.len(), NAME_BYTES_MAX);
        assert_eq!(found[0].series.attributes[0].1.len(), VALUE_BYTES_MAX);
        let bytes = metrics_data(&[metric("m", &[("a", "b")], 1.0, Some(1))]);
        for end in 1..bytes.len() {
            assert_eq!(points(&bytes[..end]), Err(Malformed), "cut at {end}");
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
            let _ = points(&bytes);
        }
    }
}
