//! The door: a token, once.

use maud::{DOCTYPE, Markup, html};

use crate::shell::head;

/// `next`: where to go afterwards, a path of ours.
pub fn page(next: &str, error: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head("Log in", false))
            body.plain {
                main #main.login {
                    h1 { span.mark aria-hidden="true" {} "tutti" }
                    form method="post" action="/login" {
                        input type="hidden" name="next" value=(next);
                        // Password managers want a name to go with what they keep.
                        input.away type="text" name="username" autocomplete="username"
                            value="tutti" readonly
                            tabindex="-1" aria-hidden="true";
                        label for="token" { "Access token" }
                        input #token type="password" name="token" required autofocus
                            autocomplete="current-password" spellcheck="false"
                            aria-describedby="where" placeholder="tutti_u_…";
                        @if let Some(error) = error { p.error role="alert" { (error) } }
                        button type="submit" { "Log in" }
                    }
                    p.hint #where {
                        "The first admin's token is in the file " code { "admin.token" }
                        " of the controller's data directory; "
                        code { "tutti token create --role viewer" } " makes one that can only look."
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_and_nothing_is_repeated() {
        let text = page("/jobs/7?a=\"b", Some("unknown <token>")).into_string();
        assert!(text.contains("value=\"/jobs/7?a=&quot;b\""), "{text}");
        assert!(text.contains("role=\"alert\">unknown &lt;token&gt;"), "{text}");
        assert!(!page("/", None).into_string().contains("alert"));
    }
}
