//! The documentation site: its links, and its pages in Chromium at the widths of a telephone and of a desk.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::{Context, LIMIT, Row, Target, number};
use crate::site;

/// Widths in pixels.
const WIDTHS: [u32; 2] = [400, 1280];
/// Pages with a picture each, for people.
const PICTURES: [&str; 6] = ["index", "install", "congestion", "edge-config", "guides/controller", "performance"];

/// Builds the site and looks at it.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let site = site::build(&context.root)?;
    let book = std::path::absolute(&site.book)?;
    let mut rows = vec![
        Row::new("pages", number(site.pages), "", Target::AtLeast(20.0)),
        Row::new("broken links", number(site.faults.len()), "", Target::Exactly(0.0)).detail(format!(
            "{} links of pages\n{}",
            site.links,
            site.faults.join("\n")
        )),
    ];
    let scratch = std::path::absolute(context.commands.scratch("face-site")?)?;
    let mut pages = Vec::new();
    names(&book, &book, &mut pages)?;
    for width in WIDTHS {
        let frame = scratch.join(format!("frame-{width}.html"));
        fs::write(&frame, measuring(&book, &pages, width))?;
        let mut browser = chromium(&scratch);
        browser.args(["--dump-dom", "--virtual-time-budget=60000"]).arg(format!("file://{}", frame.display()));
        let ended = context.commands.run(&format!("face-site-{width}"), &mut browser, LIMIT)?.ok()?;
        let report =
            ended.stdout.split("<pre>").nth(1).and_then(|rest| rest.split("</pre>").next()).unwrap_or_default();
        let seen: Vec<&str> = report.lines().filter(|line| line.contains(" px wide at ")).collect();
        let wide: Vec<&str> = seen.iter().filter(|line| !line.ends_with("fits")).copied().collect();
        rows.push(Row::new(
            format!("pages measured at {width} px"),
            number(seen.len()),
            "",
            Target::Exactly(number(pages.len())),
        ));
        rows.push(
            Row::new(format!("pages wider than {width} px"), number(wide.len()), "", Target::Exactly(0.0))
                .detail(wide.join("\n")),
        );
        for page in PICTURES {
            let frame = scratch.join(format!("page-{width}-{}.html", page.replace('/', "-")));
            let address = book.join(page).with_extension("html");
            let style = format!("<style>body{{margin:0}}iframe{{border:0;width:{width}px;height:1600px}}</style>");
            fs::write(&frame, format!("<!doctype html>{style}<iframe src=\"file://{}\"></iframe>", address.display()))?;
            let mut browser = chromium(&scratch);
            let picture = frame.with_extension("png");
            browser
                .arg(format!("--window-size={},1600", width.max(500)))
                .arg(format!("--screenshot={}", picture.display()));
            browser.args(["--virtual-time-budget=5000"]).arg(format!("file://{}", frame.display()));
            context.commands.run("face-site-picture", &mut browser, LIMIT)?.ok()?;
        }
    }
    if let Some(row) = rows.last_mut() {
        row.detail = format!("{}\npictures: {}", row.detail, scratch.display()).trim().to_owned();
    }
    Ok(rows)
}

/// Chromium without a window, which lets a page look into the frames that it holds.
fn chromium(scratch: &Path) -> Command {
    let mut browser = Command::new("chromium");
    browser.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-web-security",
        "--allow-file-access-from-files",
    ]);
    browser.arg("--hide-scrollbars").arg(format!("--user-data-dir={}", scratch.join("profile").display()));
    browser
}

/// Page that shows each page in a frame, and says how wide its content is.
fn measuring(book: &Path, pages: &[String], width: u32) -> String {
    let list = serde_json::to_string(pages).expect("names are JSON");
    format!(
        "<!doctype html><style>iframe{{width:{width}px;height:900px;border:0}}</style><pre></pre><iframe></iframe><script>
const frame = document.querySelector('iframe'), pages = {list};
let at = 0;
frame.onload = () => {{
  if (at > 0) {{
    const wide = frame.contentDocument.documentElement.scrollWidth;
    document.querySelector('pre').textContent += `${{pages[at - 1]}}: ${{wide}} px wide at {width}, ${{wide <= {width} ? 'fits' : 'too wide'}}\\n`;
  }}
  if (at < pages.length) frame.src = 'file://{}/' + pages[at++];
}};
frame.src = 'about:blank';
</script>",
        book.display()
    )
}

/// Pages for readers: not the one for printing, which repeats all others.
fn names(book: &Path, folder: &Path, pages: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            names(book, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let name = path.strip_prefix(book)?.to_str().context("names of pages are UTF-8")?;
            if !matches!(name, "print.html" | "404.html" | "toc.html") {
                pages.push(name.to_owned());
            }
        }
    }
    pages.sort();
    Ok(())
}
