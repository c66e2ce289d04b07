// Two runs: the verdict, other differences, the change from A's step to B's, and tables with both columns.

const SECTIONS = {
  overview: "Overview",
  waterfall: "From A to B",
  rows: "All rows",
  flame: "Flame graph",
  besides: "More differences",
};
const VIEWS = {
  reasons: "Reasons",
  parts: "Parts",
  modules: "Modules",
  operators: "Operators",
  lines: "Lines",
  classes: "Device",
  kernels: "Kernels",
  collectives: "Collectives",
};
const IN_WATERFALL = 12;
const isTime = DATA.unit === "ns";
const amount = (value) => (isTime ? ms(value / 1e6) : percent(value));
const signed = (value) => `${value < 0 ? "−" : "+"}${amount(Math.abs(value))}`;
const scaled = (value) => (isTime ? value / 1e6 : value * 100);

function stat(number, text) {
  return el("div", { class: "stat" }, el("strong", null, number), el("span", null, text));
}

function list(kind, texts) {
  if (!texts.length) return null;
  return el(
    "ul",
    { class: `plain-list ${kind}` },
    texts.map((each) => el("li", null, each)),
  );
}

function overview() {
  const opening = DATA.opening;
  const differs = DATA.differs.map((each) => ({ name: each.name, a: each.a || "none", b: each.b || "none" }));
  return el(
    "section",
    { id: "overview", class: "overview" },
    el(
      "div",
      { class: "heading" },
      el("div", { class: "title" }, el("h1", null, `${DATA.a.label} → ${DATA.b.label}`), definitions("verdict")),
      el("p", { class: "meta" }, el("span", null, stageName(DATA.a.stage))),
    ),
    opening.differing.map((each) => el("p", { class: "lead" }, each)),
    el("p", { class: "lead verdict" }, opening.sentence),
    el(
      "div",
      { class: "stats" },
      opening.figures.map((each) => stat(each.value, `${each.side}: ${each.what}`)),
    ),
    list("doubts", opening.doubts),
    opening.notes.length || differs.length
      ? el(
          "details",
          { id: "notes" },
          el("summary", null, "Notes and other facts"),
          list("doubts", opening.notes),
          differs.length
            ? dataTable({
                id: "differs",
                caption: "Differing facts",
                rows: differs,
                limit: 20,
                search: "Search facts",
                columns: [
                  { key: "name", label: "Fact", kind: "text" },
                  { key: "a", label: "A", kind: "name" },
                  { key: "b", label: "B", kind: "name" },
                ],
              })
            : null,
        )
      : null,
    DATA.told.length
      ? [
          el("h2", null, "Reasons"),
          el("p", { class: "lead" }, DATA.recorded),
          el(
            "ol",
            { class: "plain-list told" },
            DATA.told.map((each) => el("li", null, each)),
          ),
        ]
      : null,
  );
}

// each bar starts at the end of the previous one
function waterfall() {
  if (!DATA.reasons.length || !isTime) return null;
  const rows = DATA.reasons.filter((row) => row.difference !== 0);
  const shown = rows.slice(0, IN_WATERFALL);
  const rest = rows.slice(IN_WATERFALL).reduce((sum, row) => sum + row.difference, 0);
  const steps = shown.map((row) => [row.title, row.difference]);
  if (rest !== 0) steps.push([`${rows.length - shown.length} smaller differences`, rest]);
  const begin = DATA.a.recorded_ns,
    end = DATA.b.recorded_ns;
  let level = begin,
    low = Math.min(begin, end),
    high = Math.max(begin, end);
  for (const [, change] of steps) {
    level += change;
    low = Math.min(low, level);
    high = Math.max(high, level);
  }
  // the axis starts at zero, unless the difference is then invisible
  const from = high - low < high / 4 ? Math.max(low - (high - low) / 4, 0) : 0;
  const place = (value) => ((value - from) / (high - from || 1)) * 100;
  const line = (what, first, last, kind, text) => [
    el("span", { class: "what", title: what }, what),
    el(
      "span",
      { class: "lane" },
      el("i", {
        class: kind,
        style: { left: `${place(Math.min(first, last))}%`, width: `${Math.abs(place(last) - place(first))}%` },
      }),
    ),
    el("span", { class: "by" }, text),
  ];
  const whole = from ? "step cut" : "step";
  level = begin;
  const bars = steps.map(([title, change]) => {
    const before = level;
    level += change;
    return line(title, before, level, change > 0 ? "more" : "less", signed(change));
  });
  return section(
    "waterfall",
    "From A's step to B's",
    "The largest differences of the profiled steps. All rows sum to the difference of the steps.",
    el(
      "div",
      { class: "waterfall" },
      line(`A: ${DATA.a.label}`, from, begin, whole, amount(begin)),
      bars,
      line(`B: ${DATA.b.label}`, from, end, whole, amount(end)),
    ),
    from ? el("p", { class: "muted" }, `The bars of A and B are cut: the chart starts at ${amount(from)}.`) : null,
  );
}

function tableRow(row) {
  const times = Object.fromEntries(
    ["a", "b", "difference", "by_count", "by_price"].map((key) => [key, scaled(row[key])]),
  );
  return {
    ...times,
    title: row.renamed ? `${row.title} (in B ${row.renamed})` : row.title,
    count_a: row.count_a,
    count_b: row.count_b,
  };
}

function allRows() {
  const unit = isTime ? "ms" : "% of the step";
  const kind = isTime ? "ms" : "number";
  const columns = [
    { key: "title", label: "What", kind: "name" },
    { key: "a", label: `A, ${unit}`, kind },
    { key: "b", label: `B, ${unit}`, kind },
    { key: "difference", label: "Difference", kind, title: "B minus A, per step" },
    { key: "count_a", label: "Calls of A", kind: "number" },
    { key: "count_b", label: "Calls of B", kind: "number" },
    { key: "by_count", label: "By calls", kind, title: "(calls of B - calls of A) times the duration of A's calls" },
    { key: "by_price", label: "By price", kind },
  ];
  const every = { reasons: DATA.reasons, ...DATA.tables };
  const groups = {};
  for (const [key, label] of Object.entries(VIEWS))
    if (every[key] && every[key].length) groups[key] = { label, columns, rows: every[key].map(tableRow) };
  const first = Object.keys(groups)[0];
  if (!first) return null;
  return section(
    "rows",
    "All rows",
    "Per profiled step. The rows of each view except collectives sum to the difference of the steps.",
    dataTable({ id: "rows", caption: "All rows", groups, group: first, search: "Search", limit: 20 }),
  );
}

function flame() {
  if (!Object.keys(DATA.flames).length) return null;
  return section(
    "flame",
    "Flame graph of the difference",
    "Per step, on all threads. Red frames take longer than in the other run, blue frames less. Frames that B no " +
      "longer has are visible with the widths of A.",
    flameGraph(DATA.flames, "flame"),
  );
}

function besides() {
  const parts = [];
  if (DATA.memory.length)
    parts.push(
      el("h3", null, "Peak memory"),
      dataTable({
        id: "memory",
        caption: "Peak memory",
        rows: DATA.memory,
        columns: [
          { key: "device", label: "Device", kind: "text" },
          { key: "a", label: "A", kind: "bytes" },
          { key: "b", label: "B", kind: "bytes" },
        ],
      }),
    );
  for (const [key, title] of [
    ["came", "New findings in B"],
    ["went", "Findings of A that B does not have"],
  ]) {
    if (DATA.findings[key].length)
      parts.push(
        el("h3", null, title),
        el(
          "ul",
          { class: "plain-list" },
          DATA.findings[key].map((each) => el("li", null, each)),
        ),
      );
  }
  const ranks = Object.entries(DATA.ranks).map(([side, each]) => ({ side: side.toUpperCase(), ...each }));
  if (ranks.length)
    parts.push(
      el("h3", null, "Ranks"),
      dataTable({
        id: "ranks",
        caption: "Ranks",
        rows: ranks,
        columns: [
          { key: "side", label: "Side", kind: "text" },
          { key: "count", label: "Ranks", kind: "count" },
          { key: "median_ms", label: "Median step, ms", kind: "ms" },
          { key: "slowest", label: "Slowest rank", kind: "count" },
          { key: "slowest_ms", label: "Its step, ms", kind: "ms" },
        ],
      }),
    );
  if (DATA.counts.length)
    parts.push(
      el("h3", null, "Number of calls"),
      el(
        "p",
        { class: "lead" },
        "Operators, labels, runtime calls and kernels whose number per step differs, on all threads.",
      ),
      dataTable({
        id: "counts",
        caption: "Number of calls",
        rows: DATA.counts,
        search: "Search names",
        columns: [
          { key: "name", label: "Name", kind: "name" },
          { key: "a", label: "A", kind: "number" },
          { key: "b", label: "B", kind: "number" },
        ],
      }),
    );
  return parts.length ? section("besides", "More differences", null, ...parts) : null;
}

const sections = [overview(), waterfall(), allRows(), flame(), besides()].filter(Boolean);
document.getElementById("main").replaceChildren(...sections);
document
  .getElementById("nav")
  .replaceChildren(...sections.map((each) => el("a", { href: `#${each.id}` }, SECTIONS[each.id])));
document.title = `${DATA.a.label} → ${DATA.b.label} · perfhooks`;
document.body.dataset.ready = "yes";
window.addEventListener("hashchange", goTo);
goTo();
