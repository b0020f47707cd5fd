//! `tutti plan --task inference`.

use serde_json::{Value, json};
use tutti_planner::{Serving, ServingPlan};

use super::{billions, money, seconds};
use crate::show::{count, thousands};
use crate::style::{Ink, Style};

pub struct Served<'a> {
    pub asked: &'a Serving<'a>,
    pub plan: &'a ServingPlan,
    pub currency: &'a str,
}
