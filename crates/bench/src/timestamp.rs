//! A point in time as text, in UTC: for results (RFC 3339) and for file names (as OMB names its results).
//!
//! Times before 1970 are written as the beginning of 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: u64 = 86_400;

/// With milliseconds: "2026-03-01T12:30:05.250Z".
pub fn rfc3339(time: SystemTime) -> String {
    let since = since_epoch(time);
    let Parts { year, month, day, hour, minute, second } = parts(since.as_secs());
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// To the second: "2026-03-01-12-30-05".
pub fn file_stamp(time: SystemTime) -> String {
    let Parts { year, month, day, hour, minute, second } = parts(since_epoch(time).as_secs());
    format!("{year:04}-{month:02}-{day:02}-{hour:02}-{minute:02}-{second:02}")
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

struct Parts {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// The Gregorian calendar from days since 1970, by Howard Hinnant's `civil_from_days`. Years begin in March, so that
/// the leap day is the last day of its year. 400 years (an era) always have the same length.
fn parts(seconds: u64) -> Parts {
    let days = seconds / SECONDS_PER_DAY + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let of_day = seconds % SECONDS_PER_DAY;
    Parts {
        year: era * 400 + year_of_era + u64::from(month <= 2),
        month,
        day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        hour: of_day / 3600,
        minute: of_day / 60 % 60,
        second: of_day % 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn known_times_are_written_right() {
        assert_eq!(rfc3339(at(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(at(951_782_399) + Duration::from_millis(7)), "2000-02-28T23:59:59.007Z");
        assert_eq!(rfc3339(at(951_782_400)), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(at(4_107_542_400)), "2100-03-01T00:00:00.000Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(5)), "1970-01-01T00:00:00.000Z");
        assert_eq!(file_stamp(at(1_767_225_599)), "2025-12-31-23-59-59");
        assert_eq!(file_stamp(at(1_767_225_600)), "2026-01-01-00-00-00");
    }
}
