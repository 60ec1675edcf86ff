//! Bars with their range, as SVG.

use crate::peers::Who;
use crate::report::Row;
use std::fmt::Write;

const BAR: f64 = 14.0;
const LEFT: f64 = 170.0;
const WIDE: f64 = 560.0;

fn colour(who: Who) -> &'static str {
    match who {
        Who::Trine => "#1b6ca8",
        Who::Native => "#6fa8d6",
        Who::Quorum => "#d9822b",
        Who::Nbdkit => "#8a9ba8",
        Who::QemuNbd => "#bfccd6",
        Who::Hop => "#e1e8ed",
        Who::Floor => "#394b59",
    }
}

/// A bar for each row, in their order, grouped by case.
pub(crate) fn bars(title: &str, rows: &[&Row]) -> String {
    let most = rows.iter().map(|row| row.range().1).fold(1.0, f64::max);
    let x = |rate: f64| LEFT + rate / most * WIDE;
    let mut body = String::new();
    let (mut y, mut case) = (34.0, "");
    for row in rows {
        if row.case != case {
            case = row.case;
            y += 10.0;
            let _ = writeln!(body, r#"<text x="8" y="{:.0}" font-weight="bold">{case}</text>"#, y + BAR - 3.0);
        }
        let (rate, (least, most)) = (row.rate(), row.range());
        let middle = y + BAR / 2.0;
        let _ = writeln!(
            body,
            r#"<rect x="{LEFT}" y="{y:.1}" width="{:.1}" height="{:.1}" fill="{}"/><path d="M{:.1} {middle:.1}H{:.1}" stroke="black"/><text x="{:.1}" y="{:.1}">{:.1} {}</text>"#,
            x(rate) - LEFT,
            BAR - 2.0,
            colour(row.who),
            x(least),
            x(most),
            x(most) + 6.0,
            y + BAR - 4.0,
            rate / 1000.0,
            row.who.name(),
        );
        y += BAR;
    }
    let (wide, high) = (LEFT + WIDE + 170.0, y + 12.0);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0}" height="{high:.0}" font-family="sans-serif" font-size="10">
<rect width="100%" height="100%" fill="white"/><text x="8" y="20" font-size="14">{title}</text>
{body}</svg>
"#
    )
}
