//! Moments as authors write them: with an offset, or local to a zone whose rules are compiled in.

use jiff::Timestamp;
use jiff::civil::DateTime as Local;
use jiff::tz::TimeZone;

/// A text that is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMoment {
    /// It cannot be read.
    #[error("`{0}` is not a moment: write 2026-12-24T18:00:00Z, or 2026-12-24T18:00 with a `zone`")]
    Form(String),
    /// There is no such zone.
    #[error("there is no time zone `{0}`; it is an IANA name, such as Europe/Berlin")]
    Zone(String),
    /// An offset and a zone.
    #[error("`{0}` has an offset, so that it takes no `zone`")]
    TwoZones(String),
}

/// Text of a moment or a zone that is shown in an error.
const SHOWN_CHARS_MAX: usize = 64;

/// The moment that a text means, in milliseconds since 1970.
///
/// A local time that a zone skips is as much later as the clock was put forward; one that it has twice is the first.
///
/// # Errors
/// If it is none, or the zone does not exist.
pub fn moment_ms(text: &str, zone: Option<&str>) -> Result<i64, InvalidMoment> {
    let shown = |text: &str| text.chars().take(SHOWN_CHARS_MAX).collect::<String>();
    let form = || InvalidMoment::Form(shown(text));
    let Some(zone) = zone else {
        return text.parse::<Timestamp>().map(whole_ms).map_err(|_| form());
    };
    if text.parse::<Timestamp>().is_ok() {
        return Err(InvalidMoment::TwoZones(shown(text)));
    }
    let local: Local = text.parse().map_err(|_| form())?;
    Ok(whole_ms(zone_of(zone)?.to_timestamp(local).map_err(|_| form())?))
}

/// The first whole millisecond that is not before a moment: nothing is due early.
fn whole_ms(moment: Timestamp) -> i64 {
    let is_between = moment.as_nanosecond() % 1_000_000 > 0;
    moment.as_millisecond() + i64::from(is_between)
}

/// Whether there is such a zone.
///
/// # Errors
/// If there is none.
pub fn check_zone(zone: &str) -> Result<(), InvalidMoment> {
    zone_of(zone).map(drop)
}

fn zone_of(zone: &str) -> Result<TimeZone, InvalidMoment> {
    TimeZone::get(zone).map_err(|_| InvalidMoment::Zone(zone.chars().take(SHOWN_CHARS_MAX).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_same_everywhere() {
        let berlin = Some("Europe/Berlin");
        let read = |text: &str| text.parse::<Timestamp>().map(Timestamp::as_millisecond).expect("it is one");
        for (text, zone, moment) in [
            ("2026-12-24T18:00:00Z", None, "2026-12-24T18:00:00Z"),
            ("2026-12-24T18:00:00+01:00", None, "2026-12-24T17:00:00Z"),
            ("2026-12-24T18:00", berlin, "2026-12-24T17:00:00Z"),
            ("2026-07-01T09:00:00", berlin, "2026-07-01T07:00:00Z"),
            ("2026-07-01", berlin, "2026-06-30T22:00:00Z"),
            // The clock goes from two to three, and from three to two.
            ("2026-03-29T02:30", berlin, "2026-03-29T01:30:00Z"),
            ("2026-10-25T02:30", berlin, "2026-10-25T00:30:00Z"),
            ("2026-07-01T09:00", Some("UTC"), "2026-07-01T09:00:00Z"),
            // Times are whole milliseconds, and nothing is due early.
            ("2026-12-24T18:00:00.0000001Z", None, "2026-12-24T18:00:00.001Z"),
            ("2026-07-01T09:00:00.0019", Some("UTC"), "2026-07-01T09:00:00.002Z"),
            ("1969-12-31T23:59:59.9985Z", None, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(moment_ms(text, zone), Ok(read(moment)), "{text} {zone:?}");
        }
        for (text, zone, says) in [
            ("tomorrow", None, "`tomorrow` is not a moment"),
            ("2026-12-24T18:00", None, "is not a moment"),
            ("2026-12-24T18:00:00Z", berlin, "takes no `zone`"),
            ("2026-02-30T18:00", berlin, "is not a moment"),
            ("2026-12-24T18:00", Some("Mars/Olympus"), "no time zone `Mars/Olympus`"),
        ] {
            let error = moment_ms(text, zone).expect_err(text).to_string();
            assert!(error.contains(says), "{text} {zone:?}: {error}");
        }
    }
}
