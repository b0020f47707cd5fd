//! The frame of every page: navigation, who is logged in, keys, the light, and the live stream.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tutti_model::{Role, Time};

use crate::assets::url;
use crate::live::Row;
use crate::words;

/// Who looks at a page.
#[derive(Clone, Debug)]
pub struct Reader {
    pub user: String,
    pub role: Role,
    /// Sent with every change, so that no other page can make one.
    pub csrf: String,
    /// Some of the cluster is imagined.
    pub simulated: bool,
    pub version: String,
    /// When the page was made, by the controller's clock: scripts count from there.
    pub now: Time,
    /// How fast that clock goes, if it is a simulation's.
    pub pace: Option<f64>,
}

impl Reader {
    /// Viewers change nothing.
    pub fn may_act(&self) -> bool {
        self.role >= Role::User
    }

    pub fn is_admin(&self) -> bool {
        self.role >= Role::Admin
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    Overview,
    Queue,
    Jobs,
    Endpoints,
    Nodes,
    Teams,
    Cost,
    Alerts,
    Timeline,
    None,
}

/// Where each tab is, what it is called, and the key that goes there after `g`.
const TABS: &[(Tab, &str, &str, &str)] = &[
    (Tab::Overview, "/", "Overview", "o"),
    (Tab::Queue, "/queue", "Queue", "q"),
    (Tab::Jobs, "/jobs", "Jobs", "j"),
    (Tab::Endpoints, "/endpoints", "Endpoints", "e"),
    (Tab::Nodes, "/nodes", "Nodes", "n"),
    (Tab::Teams, "/teams", "Teams", "t"),
    (Tab::Cost, "/cost", "Cost", "c"),
    (Tab::Alerts, "/alerts", "Alerts", "a"),
    (Tab::Timeline, "/timeline", "Timeline", "l"),
];

/// What a page is.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    pub tab: Tab,
    pub title: &'a str,
    /// The query of its live stream; none if nothing on it is live.
    pub live: Option<String>,
    pub body: Markup,
}

pub fn document(reader: &Reader, page: &Page<'_>) -> Markup {
    let live = page.live.as_ref().map(|query| format!("/live?{query}"));
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(page.title, true))
            body data-role=(reader.role) data-user=(reader.user) data-csrf=(reader.csrf)
                data-now=(reader.now.0) data-pace=[reader.pace] data-live=[live]
                data-testid="page" {
                a.skip href="#main" { "Skip to content" }
                (top(reader, page.tab))
                main #main tabindex="-1" { (page.body) }
                footer.foot {
                    span { "tutti " (reader.version) }
                    span #link role="status" data-testid="link" { "connecting" }
                    button.quiet type="button" data-do="help" { "Keys " kbd { "?" } }
                }
                div #toasts role="status" aria-live="polite" {}
                (help(reader))
            }
        }
    }
}

/// `full`: with what a page needs beyond text.
pub(crate) fn head(title: &str, full: bool) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="referrer" content="same-origin";
            title { (title) " · tutti" }
            link rel="icon" href=(url("icon.svg")) type="image/svg+xml";
            link rel="stylesheet" href=(url("app.css"));
            script src=(url("theme.js")) {}
            @if full {
                link rel="stylesheet" href=(url("uPlot.css"));
                script defer src=(url("uPlot.js")) {}
                script type="module" src=(url("app.js")) {}
            }
        }
    }
}

fn top(reader: &Reader, tab: Tab) -> Markup {
    html! {
        header.top {
            a.brand href="/" aria-label="tutti, overview" {
                span.mark aria-hidden="true" {} "tutti"
            }
            nav aria-label="Pages" {
                @for (of, href, name, key) in TABS {
                    a href=(href) data-go=(key) aria-current=[(*of == tab).then_some("page")] {
                        (name)
                    }
                }
            }
            div.who {
                @if reader.pace.is_some() { (words::staged(reader.now)) }
                @else if reader.simulated { (words::simulated()) }
                button.quiet type="button" data-do="theme" aria-label="Light or dark"
                    title="Light or dark (d)" {
                    span.sun aria-hidden="true" { "◐" }
                }
                span.user title={ "Role: " (reader.role) } {
                    (reader.user) " " small { (reader.role) }
                }
                form method="post" action="/logout" {
                    input type="hidden" name="csrf" value=(reader.csrf);
                    button.quiet type="submit" { "Log out" }
                }
            }
        }
    }
}

fn help(reader: &Reader) -> Markup {
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keys" }
            dl.keys {
                @for (_, _, name, key) in TABS {
                    div { dt { kbd { "g" } " " kbd { (key) } } dd { "Go to " (name) } }
                }
                div { dt { kbd { "/" } } dd { "Filter, or search the log" } }
                div { dt { kbd { "j" } " " kbd { "k" } } dd { "Next and previous row" } }
                div { dt { kbd { "Enter" } } dd { "Open the row" } }
                @if reader.may_act() {
                    div { dt { kbd { "x" } } dd { "Select the row" } }
                    div { dt { kbd { "c" } } dd { "Cancel what is selected" } }
                    div {
                        dt { kbd { "h" } " " kbd { "r" } } dd { "Hold, release what is selected" }
                    }
                }
                div { dt { kbd { "1" } "–" kbd { "5" } } dd { "Colour the GPUs by another value" } }
                div { dt { kbd { "d" } } dd { "Light or dark" } }
                div { dt { kbd { "?" } } dd { "This list" } }
            }
            form method="dialog" { button type="submit" { "Close" } }
        }
    }
}

/// A region that the live stream replaces.
pub(crate) fn region(id: &'static str, content: &Markup) -> Markup {
    html! { div.region id=(id) { (content) } }
}

/// Rows of a long list that are laid out and drawn together, if they are in sight. `rows.js` goes on with the same.
const GROUP: usize = 16;

/// The rows of a list; one group at least, to put new ones into.
pub(crate) fn groups(rows: &[Row]) -> Markup {
    html! {
        @for group in rows.chunks(GROUP) {
            tbody role="rowgroup" { @for row in group { (PreEscaped(&row.html)) } }
        }
        @if rows.is_empty() { tbody role="rowgroup" {} }
    }
}

/// A page that says why there is none.
pub fn problem(reader: Option<&Reader>, title: &str, message: &str, hint: Option<&str>) -> Markup {
    let body = html! {
        section.panel.problem {
            h1 { (title) }
            p { (message) }
            @if let Some(hint) = hint { p.hint { (hint) } }
            p { a href="/" { "To the overview" } }
        }
    };
    match reader {
        Some(reader) => document(reader, &Page { tab: Tab::None, title, live: None, body }),
        None => html! {
            (DOCTYPE)
            html lang="en" { (head(title, false)) body.plain { main #main { (body) } } }
        },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn reader(role: Role) -> Reader {
        Reader {
            user: "ada".into(),
            role,
            csrf: "c5f".into(),
            simulated: true,
            version: "0.1.0".into(),
            now: Time(1000),
            pace: None,
        }
    }

    fn page(role: Role) -> String {
        let body = html! { p { "<body>" } };
        let live = Some("page=overview".to_owned());
        let page = Page { tab: Tab::Queue, title: "Queue", live, body };
        document(&reader(role), &page).into_string()
    }

    #[test]
    fn nothing_is_inline_and_nothing_is_from_elsewhere() {
        let text = page(Role::Admin);
        assert!(!text.contains("style=") && !text.contains("<style"), "{text}");
        assert!(!text.contains("onclick") && !text.contains("://"), "{text}");
        for script in text.split("<script").skip(1) {
            assert!(script.contains("src=\"/assets/") && script.contains("></script>"), "{script}");
        }
    }

    #[test]
    fn the_page_says_who_and_where() {
        let text = page(Role::Viewer);
        assert!(text.contains("href=\"/queue\" data-go=\"q\" aria-current=\"page\""), "{text}");
        assert!(text.contains("data-role=\"viewer\"") && text.contains(">simulated<"), "{text}");
        assert!(text.contains("data-live=\"/live?page=overview\""), "{text}");
        assert!(text.contains("class=\"skip\" href=\"#main\""), "{text}");
        assert!(!text.contains("Cancel what is selected"), "viewers are told nothing of changes");
        assert!(page(Role::User).contains("Cancel what is selected"));
    }

    #[test]
    fn a_problem_is_a_page_too() {
        let text = problem(None, "Not found", "there is no job <7>", Some("look at /jobs"));
        assert!(text.into_string().contains("there is no job &lt;7&gt;"));
    }
}
