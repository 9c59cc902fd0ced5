//! Layout of the screen: title, progress, two charts, a table, keys.
//!
//! A terminal of 80 columns and 24 lines shows everything. With fewer columns the table has fewer figures; with fewer lines the charts get
//! lower, and what the table has as well is left out.

use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Modifier, Style, Stylize},
    text::{Line as Text, Span},
    widgets::{Block, Cell, Clear, LineGauge, Paragraph, Row, Sparkline, Table, TableState},
};

use super::{
    model::{Figure, Line},
    view::View,
};

/// Fewest lines of a screen that has room for everything.
const TALL: u16 = 20;

/// Explanations of the keys.
const HELP: [&str; 8] = [
    "q, Ctrl-C  end with the results so far",
    "           again: end without them",
    "p, Space   pause the display only",
    "Tab, ↓ ↑   another row of the table",
    "← →        another figure in the chart",
    "?          close this",
    "",
    "–          not measured",
];

/// Draws the view.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let is_tall = area.height >= TALL;
    let chart = if is_tall { area.height / 5 } else { 2 };
    let progress = u16::from(is_tall);
    let details = if is_tall { 2 } else { 0 };
    let [title, gauge, goodput, figure, more, table, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(progress),
        Constraint::Length(chart),
        Constraint::Length(chart),
        Constraint::Length(details),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, view);
    draw_progress(frame, gauge, view);
    draw_chart(frame, goodput, view, Figure::Goodput);
    draw_chart(frame, figure, view, view.figure);
    draw_details(frame, more, view.line());
    draw_table(frame, table, view);
    draw_keys(frame, keys, view);
    if view.has_help {
        draw_help(frame, area);
    }
}

/// Title and stage on the left, times on the right. The times have precedence.
fn draw_title(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let model = view.model();
    let left = model.left.map_or_else(|| "–".to_owned(), |left| format!("{:.0} s", left.as_secs_f64().ceil()));
    let times = format!(" {} s, {left} left", model.elapsed.as_secs());
    let width = u16::try_from(times.chars().count()).unwrap_or(u16::MAX);
    let [named, timed] = Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let mut title = vec![Span::from(model.title.as_str()).bold()];
    if let Some(stage) = &model.stage {
        // The stage tells more than the title where there is not room for both.
        let room = usize::from(named.width).saturating_sub(stage.chars().count() + 2);
        title = vec![Span::from(shortened(&model.title, room)).bold(), Span::from("  "), Span::from(stage.as_str())];
    }
    frame.render_widget(Text::from(title), named);
    frame.render_widget(Paragraph::new(times).alignment(Alignment::Right), timed);
}

/// A text of at most so many characters.
fn shortened(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    if room > 0 {
        short.push('…');
    }
    short
}

fn draw_progress(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let Some(done) = view.model().done else { return };
    let gauge = LineGauge::default()
        .ratio(done)
        .label(format!("{:3.0} %", done * 100.0))
        .filled_symbol("█")
        .unfilled_symbol("░")
        .filled_style(Style::new().cyan());
    frame.render_widget(gauge, area);
}

/// A line of text, and below it the newest points, the latest at the right.
fn draw_chart(frame: &mut Frame<'_>, area: Rect, view: &View, figure: Figure) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let Some(line) = view.line() else { return };
    let width = usize::from(body.width);
    let points: Vec<Option<f64>> = line.series(figure, width).collect();
    let highest = points.iter().flatten().copied().reduce(f64::max);
    let added = if figure.is_count() { " at once" } else { "" };
    let head_text = vec![
        Span::from(figure.name()).bold(),
        Span::from(format!(" {}", figure.text(figure.of(line)))),
        Span::from(format!("  highest {}{added}", figure.text(highest))).dim(),
        Span::from(format!("  {}", line.name)).dim(),
    ];
    frame.render_widget(Text::from(head_text), head);
    let full = highest.unwrap_or(0.0).max(f64::MIN_POSITIVE);
    let missing = width.saturating_sub(points.len());
    let bars = std::iter::repeat_n(None, missing).chain(points).map(|point| point.map(|value| height(value / full)));
    let bars: Vec<Option<u64>> = bars.collect();
    frame.render_widget(Sparkline::default().data(bars).max(STEPS).style(Style::new().cyan()), body);
}

/// Height of the highest bar, in steps.
const STEPS: u64 = 1_000;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "steps")]
fn height(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * STEPS as f64).round() as u64
}

/// Figures of the selected connection that the table may have no room for.
fn draw_details(frame: &mut Frame<'_>, area: Rect, line: Option<&Line>) {
    let Some(line) = line else { return };
    let figure = |figure: Figure| format!("{} {}", figure.name(), figure.text(figure.of(line)));
    let count = |count: Option<u64>| count.map_or_else(|| "–".to_owned(), |count| count.to_string());
    let rates = [Figure::InFlight, Figure::PacingRate, Figure::DeliveryRate].map(figure).join("   ");
    let counts = format!(
        "packets sent {}   lost {}   repaired {}   acknowledgements {}",
        count(line.last.packets_sent),
        count(line.last.packets_lost),
        count(line.last.packets_repaired),
        count(line.last.acks)
    );
    frame.render_widget(Paragraph::new(vec![Text::from(rates), Text::from(counts)]), area);
}

/// Columns of the table after the name, in the order in which they get room, with width and place.
const COLUMNS: [(Column, u16, usize); 9] = [
    (Column::Of(Figure::Goodput), 11, 0),
    (Column::Of(Figure::Rtt), 9, 1),
    (Column::Of(Figure::Lost), 7, 6),
    (Column::State, 15, 8),
    (Column::Of(Figure::Window), 10, 2),
    (Column::Of(Figure::Repaired), 8, 7),
    (Column::Of(Figure::InFlight), 10, 3),
    (Column::Of(Figure::PacingRate), 11, 4),
    (Column::Of(Figure::DeliveryRate), 13, 5),
];

/// Width of names.
const NAME: u16 = 12;

#[derive(Clone, Copy)]
enum Column {
    Of(Figure),
    State,
}

impl Column {
    fn head(self) -> &'static str {
        match self {
            Self::Of(figure) => figure.name(),
            Self::State => "state",
        }
    }

    fn text(self, line: &Line) -> String {
        match self {
            Self::Of(figure) => figure.text(figure.of(line)),
            Self::State => line.last.state.unwrap_or("–").to_owned(),
        }
    }

    fn cell(self, text: String) -> Cell<'static> {
        let alignment = if matches!(self, Self::Of(_)) { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(text).alignment(alignment))
    }
}

/// Columns that fit, in their places.
fn columns(width: u16) -> Vec<(Column, u16)> {
    let mut left = width.saturating_sub(NAME);
    let mut fitting: Vec<(Column, u16, usize)> = Vec::new();
    for column in COLUMNS {
        let Some(rest) = left.checked_sub(column.1 + 1) else { break };
        left = rest;
        fitting.push(column);
    }
    fitting.sort_by_key(|column| column.2);
    fitting.into_iter().map(|(column, width, _)| (column, width)).collect()
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let model = view.model();
    let columns = columns(area.width);
    let widths =
        std::iter::once(Constraint::Min(NAME)).chain(columns.iter().map(|(_, width)| Constraint::Length(*width)));
    let head =
        std::iter::once(Cell::default()).chain(columns.iter().map(|(column, _)| column.cell(column.head().to_owned())));
    let rows = model.lines.iter().map(|line| {
        let figures = columns.iter().map(|(column, _)| column.cell(column.text(line)));
        Row::new(std::iter::once(Cell::from(line.name.as_str())).chain(figures))
    });
    let more = (model.unseen > 0).then(|| Row::new([Cell::from(format!("and {} more", model.unseen))]));
    let table = Table::new(rows.chain(more), widths)
        .column_spacing(1)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!model.lines.is_empty()).then(|| view.selected()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let keys = if area.width < 60 {
        "q end p pause Tab row  ←→ figure ? help"
    } else {
        "q end   p pause   Tab ↓ ↑ row   ← → figure   ? help"
    };
    let mut line = Vec::new();
    if view.is_ending {
        line.push(Span::from("ending, q again ends at once").reversed());
    } else {
        if view.is_paused() {
            line.extend([Span::from("paused").reversed(), Span::from(" ")]);
        }
        line.push(Span::from(keys));
    }
    frame.render_widget(Text::from(line), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let longest = HELP.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let (width, height) = (longest + 2, HELP.len() + 2);
    let fitting = |size: usize, room: u16| u16::try_from(size).unwrap_or(room).min(room);
    let area =
        area.centered(Constraint::Length(fitting(width, area.width)), Constraint::Length(fitting(height, area.height)));
    frame.render_widget(Clear, area);
    let text: Vec<Text<'_>> = HELP.iter().map(|line| Text::from(*line)).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" Keys ")), area);
}
