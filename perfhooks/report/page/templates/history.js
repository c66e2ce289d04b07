// Step times in all runs of a command: one bar for each run, from zero, in the order of time.

function drawn(each, number) {
  const longest = Math.max(...each.points.map((point) => point.step_ms));
  const changes = new Map(each.changes.map((change) => [change.place, change]));
  const rows = each.points.flatMap((point, place) => {
    const change = changes.get(place);
    const name = [point.when, point.revision.slice(0, 9), point.run, point.doubt].filter(Boolean).join("  ");
    const kind = change ? (change.after_ms > change.before_ms ? "more" : "less") : "step";
    return [
      change ? el("p", { class: "change" }, change.sentence) : null,
      el("span", { class: "what", title: point.revision }, name),
      el(
        "span",
        { class: "lane", title: [plural(point.steps, "step"), point.doubt].filter(Boolean).join(", ") },
        el("i", { class: kind, style: { left: 0, width: `${(100 * point.step_ms) / longest}%` } }),
      ),
      el("span", { class: "by" }, point.step),
    ];
  });
  return section(
    `series-${number}`,
    each.heading,
    each.changes.length ? null : each.points.length < 4 ? "Too few runs to detect a change." : "No lasting change.",
    el("div", { class: "waterfall" }, rows.filter(Boolean)),
  );
}

const sections = DATA.histories.map(drawn);
if (DATA.left.length)
  sections.push(
    section(
      "left",
      "Skipped runs",
      null,
      el(
        "ul",
        { class: "plain-list" },
        DATA.left.map((each) => el("li", null, each)),
      ),
    ),
  );
document.getElementById("main").replaceChildren(...sections);
document.body.dataset.ready = "yes";
