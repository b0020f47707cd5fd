//! Rows of the ledger summed up for people: GPU-hours, money, and who wasted most.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Amounts, Day, GPU_HOUR, Goodput, GpuMicros, LedgerRow, RowKey, TimeClass};
use crate::{JobId, Prices, Served, Time};

/// What each line of a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReportBy {
    Day,
    #[default]
    Team,
    User,
    Model,
}

impl ReportBy {
    pub const ALL: [ReportBy; 4] = [ReportBy::Day, ReportBy::Team, ReportBy::User, ReportBy::Model];

    pub fn as_str(self) -> &'static str {
        match self {
            ReportBy::Day => "day",
            ReportBy::Team => "team",
            ReportBy::User => "user",
            ReportBy::Model => "model",
        }
    }

    fn name_of(self, row: &LedgerRow) -> String {
        match self {
            ReportBy::Day => row.day.to_string(),
            ReportBy::Team => row.team.clone(),
            ReportBy::User => row.user.clone(),
            ReportBy::Model => row.model.clone(),
        }
    }
}

/// Where GPU-hours went, over some days.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// The first and the last day of it, in UTC.
    #[schema(value_type = String)]
    pub since: Day,
    #[schema(value_type = String)]
    pub until: Day,
    pub by: ReportBy,
    /// None: no prices are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// GPU models that have no price; their hours are not in the costs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpriced: Vec<String>,
    pub total: ReportLine,
    pub lines: Vec<ReportLine>,
    /// The jobs that wasted most, the worst first.
    pub wasters: Vec<Waster>,
    /// Endpoints that were stopped in these days or go on, those with the most GPU-hours first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub served: Vec<ServedLine>,
}

/// Some GPU-hours, by what they were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportLine {
    /// A day, team, user or GPU model; empty for what is nobody's.
    pub name: String,
    /// GPU-hours by class.
    pub gpu_hours: BTreeMap<TimeClass, f64>,
    pub total_hours: f64,
    /// What jobs held, and of that what was not productive.
    pub held_hours: f64,
    pub wasted_hours: f64,
    /// Productive so far, and not safe yet: a failure would lose it.
    pub unsaved_hours: f64,
    /// The productive part of what was held, 0 to 1. None if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl ReportLine {
    /// GPU-hours of a class; none if it is not there.
    pub fn of(&self, class: TimeClass) -> f64 {
        self.gpu_hours.get(&class).copied().unwrap_or(0.0)
    }
}

/// In the currency of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cost {
    pub total: f64,
    pub held: f64,
    pub wasted: f64,
}

/// A job and what it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Waster {
    pub id: JobId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub user: String,
    pub team: String,
    /// Its own name is empty.
    pub line: ReportLine,
}

/// An endpoint and what it did and took since it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServedLine {
    pub name: String,
    pub user: String,
    pub team: String,
    pub created_at: Time,
    /// None: it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Time>,
    pub total: Served,
    /// Of all its replicas, those that run included.
    pub gpu_hours: f64,
    /// In the policy's currency, if GPUs have a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Prompts and answers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_million_tokens: Option<f64>,
}

/// A sum that grows.
#[derive(Clone, Debug, Default)]
pub struct GpuTally {
    amounts: Amounts,
    unsaved: GpuMicros,
    /// Millionths of the currency: all, held, wasted.
    cost: (u128, u128, u128),
}

impl GpuTally {
    pub fn add(&mut self, model: &str, class: TimeClass, amount: GpuMicros, prices: &Prices) {
        self.amounts.add(class, amount);
        let cost = prices.of(model, amount).unwrap_or(0);
        self.cost.0 += cost;
        self.cost.1 += if class.is_held() { cost } else { 0 };
        self.cost.2 += if class.is_waste() { cost } else { 0 };
    }

    /// Work that is not judged yet counts as productive, and as not safe.
    pub fn add_unsaved(&mut self, model: &str, amount: GpuMicros, prices: &Prices) {
        self.add(model, TimeClass::Productive, amount, prices);
        self.unsaved += amount;
    }

    pub fn wasted(&self) -> GpuMicros {
        self.amounts.waste()
    }

    pub fn line(&self, name: String, prices: &Prices) -> ReportLine {
        let hours = |micros: GpuMicros| micros as f64 / GPU_HOUR as f64;
        let money = |micros: u128| micros as f64 / 1e6;
        let held = self.amounts.held();
        let (total, of_held, wasted) = self.cost;
        let cost = Cost { total: money(total), held: money(of_held), wasted: money(wasted) };
        let productive = self.amounts.of(TimeClass::Productive);
        ReportLine {
            name,
            gpu_hours: self.amounts.0.iter().map(|(class, n)| (*class, hours(*n))).collect(),
            total_hours: hours(self.amounts.total()),
            held_hours: hours(held),
            wasted_hours: hours(self.amounts.waste()),
            unsaved_hours: hours(self.unsaved),
            goodput: (held > 0).then(|| productive as f64 / held as f64),
            cost: (!prices.is_none()).then_some(cost),
        }
    }
}

/// Rows and work that is not judged yet, on their way to a report.
pub struct Reporter<'p> {
    by: ReportBy,
    since: Day,
    until: Day,
    prices: &'p Prices,
    total: GpuTally,
    lines: BTreeMap<String, GpuTally>,
    models: BTreeSet<String>,
}

impl<'p> Reporter<'p> {
    pub fn new(by: ReportBy, since: Day, until: Day, prices: &'p Prices) -> Reporter<'p> {
        let (total, lines, models) = Default::default();
        Reporter { by, since, until, prices, total, lines, models }
    }

    /// Rows of other days do not count.
    pub fn add(&mut self, row: &LedgerRow) {
        self.tally(row, |tally, prices| {
            tally.add(&row.model, row.class, row.gpu_micros, prices);
        });
    }

    /// The same for work that is not judged yet.
    pub fn add_unsaved(&mut self, day: Day, key: &RowKey, amount: GpuMicros) {
        let RowKey { team, user, model } = key.clone();
        let class = TimeClass::Productive;
        let row = LedgerRow { day, team, user, model, class, gpu_micros: amount };
        self.tally(&row, |tally, prices| tally.add_unsaved(&row.model, amount, prices));
    }

    fn tally(&mut self, row: &LedgerRow, add: impl Fn(&mut GpuTally, &Prices)) {
        if row.day < self.since || row.day > self.until {
            return;
        }
        add(&mut self.total, self.prices);
        add(self.lines.entry(self.by.name_of(row)).or_default(), self.prices);
        if !self.prices.is_none() && !self.prices.gpus.contains_key(&row.model) {
            self.models.insert(row.model.clone());
        }
    }

    pub fn done(self, wasters: Vec<Waster>) -> Report {
        let prices = self.prices;
        let lines = self.lines.iter().map(|(name, tally)| tally.line(name.clone(), prices));
        let mut lines: Vec<ReportLine> = lines.collect();
        // Days in their order; others by what they held, and what is nobody's at the end.
        if self.by != ReportBy::Day {
            lines.sort_by(|a, b| {
                let key = |l: &ReportLine| (l.name.is_empty(), -l.held_hours);
                let ((a_last, a_held), (b_last, b_held)) = (key(a), key(b));
                a_last.cmp(&b_last).then(a_held.total_cmp(&b_held)).then(a.name.cmp(&b.name))
            });
        }
        Report {
            since: self.since,
            until: self.until,
            by: self.by,
            currency: (!prices.is_none()).then(|| prices.currency.clone()),
            unpriced: self.models.into_iter().collect(),
            total: self.total.line(String::new(), prices),
            lines,
            wasters,
            served: Vec::new(),
        }
    }
}

impl Goodput {
    /// What a job has had so far.
    pub fn tally_of(&self, job: JobId, prices: &Prices) -> GpuTally {
        let mut tally = GpuTally::default();
        for (model, amounts) in self.jobs.get(&job).into_iter().flat_map(|book| book.iter()) {
            amounts.0.iter().for_each(|(class, n)| tally.add(model, *class, *n, prices));
        }
        for slice in self.runs_of(job).flat_map(|(_, run)| &run.slices) {
            let open: GpuMicros = slice.open.iter().map(|work| work.amount).sum();
            tally.add_unsaved(&slice.model, open, prices);
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Price;

    fn row(day: u32, team: &str, model: &str, class: TimeClass, hours: u64) -> LedgerRow {
        LedgerRow {
            day: Day(day),
            team: team.into(),
            user: if team.is_empty() { String::new() } else { "ada".into() },
            model: model.into(),
            class,
            gpu_micros: hours * GPU_HOUR,
        }
    }

    fn prices() -> Prices {
        let price = Price { micros: 2_500_000, shape: None };
        Prices { gpus: [("h100".to_owned(), price)].into(), ..Prices::default() }
    }

    #[test]
    fn hours_and_money_by_team() {
        let prices = prices();
        let mut reporter = Reporter::new(ReportBy::Team, Day(1), Day(2), &prices);
        for row in [
            row(1, "lab", "h100", TimeClass::Productive, 6),
            row(2, "lab", "h100", TimeClass::LostToFailure, 2),
            row(2, "", "h100", TimeClass::Free, 10),
            row(2, "ops", "b200", TimeClass::Idle, 1),
            row(3, "lab", "h100", TimeClass::Productive, 100),
        ] {
            reporter.add(&row);
        }
        let key = RowKey { team: "lab".into(), user: "ada".into(), model: "h100".into() };
        reporter.add_unsaved(Day(2), &key, 2 * GPU_HOUR);
        let report = reporter.done(Vec::new());
        let names: Vec<&str> = report.lines.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["lab", "ops", ""]);
        let lab = &report.lines[0];
        assert_eq!((lab.total_hours, lab.held_hours, lab.wasted_hours), (10.0, 10.0, 2.0));
        assert_eq!((lab.goodput, lab.unsaved_hours), (Some(0.8), 2.0));
        assert_eq!(lab.cost, Some(Cost { total: 25.0, held: 25.0, wasted: 5.0 }));
        assert_eq!(report.total.total_hours, 21.0);
        assert_eq!(report.total.cost.map(|c| c.total), Some(50.0));
        assert_eq!(
            (report.currency.as_deref(), report.unpriced),
            (Some("USD"), vec!["b200".into()])
        );
    }

    #[test]
    fn without_prices_there_is_no_money() {
        let none = Prices::default();
        let mut reporter = Reporter::new(ReportBy::Day, Day(1), Day(2), &none);
        reporter.add(&row(2, "lab", "h100", TimeClass::Idle, 1));
        reporter.add(&row(1, "lab", "h100", TimeClass::Idle, 2));
        let report = reporter.done(Vec::new());
        let names: Vec<&str> = report.lines.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["1970-01-02", "1970-01-03"]);
        assert_eq!((report.currency, report.lines[0].cost), (None, None));
        assert_eq!(report.lines[0].goodput, Some(0.0));
    }

    #[test]
    fn cloud_shapes_have_names() {
        let price = Price::of_shape("AWS p5.48xlarge").unwrap();
        assert_eq!((price.micros, price.shape.as_deref()), (6_880_000, Some("aws p5.48xlarge")));
        assert_eq!(Price::of_shape("aws p9"), None);
    }
}
