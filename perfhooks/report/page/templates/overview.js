// The first screen: the subject, the step time, its parts, and the findings.

// rows: [label, colour, milliseconds]; terms: definitions of the parts
function sharesTable(title, rows, whole, group, terms) {
  const tip = terms.map((term) => `${term}: ${meaning(group, term)}`).join("\n\n");
  const line = ([label, name, value]) =>
    el(
      "tr",
      null,
      el("th", { scope: "row" }, el("i", { class: "chip", style: { background: `var(--${name})` } }), label),
      el("td", { class: "num" }, digits(value)),
      el("td", { class: "num share" }, percent(value / whole)),
    );
  return el(
    "table",
    { class: "shares" },
    el("caption", null, title, el("span", { class: "muted" }, " ms "), info(tip)),
    el("tbody", null, rows.map(line)),
  );
}

const DEVICE_TERMS = ["compute", "exposed communication", "exposed copies", "other steps' work", "idle in the span"];

// means of the steps as rows of sharesTable
function meanParts(rows, parts) {
  const mean = (key) => rows.reduce((sum, row) => sum + (row[key] || 0), 0) / rows.length;
  return presentParts(rows, parts).map(([key, label]) => [label, colourOf(key), mean(key)]);
}

// parts of the summary as rows of sharesTable
function summaryParts(summary) {
  const key = (label) => (PARTS.find(([, name]) => name === label) || ["other_ms"])[0];
  const label = ({ name, where }) => (where ? `${name} (largest: ${where})` : name);
  return summary.parts.map((part) => [label(part), colourOf(key(part.name)), part.share * summary.step_ms]);
}

// the summary of the run, if it is about this window and rank
function summaryOf(window_, rank) {
  const found = DATA.summary;
  const shown = Object.keys(window_.details).map(Number);
  const first = shown.length ? Math.min(...shown) : window_.ranks[0].rank;
  return found && found.window === window_.name && rank.rank === first ? found : null;
}

function stat(value, label, tip) {
  return el("div", { class: "stat", tip }, el("strong", null, value), el("span", null, label));
}

// the fraction of its steps in which a rank only waited for others, in any part of the step
function waited(window_, rank) {
  const told = ((DATA.ranks_together || {}).windows || {})[window_.name] || {};
  const row = rowsOf(told.ranks).find((each) => each.rank === rank.rank);
  return row ? row.wait_ms / row.wall_ms : 0;
}

// the steps in the means; all texts about a step are about these
function usualSteps(steps) {
  const rows = rowsOf(steps.rows);
  const found = rows.filter((_, place) => (steps.is_usual || [])[place]);
  return found.length ? found : rows;
}

// the time of an unprofiled step, if known
function unprofiled(summary, rank) {
  if (!summary) return (rank.cost || {}).idle_step_ms;
  return summary.is_profiled ? null : summary.step_ms;
}

/* The step time, large; below it the source of the number and the profiled step time. */
function stepTime(window_, details, rank) {
  const steps = details.steps || {};
  const summary = summaryOf(window_, rank);
  const mean = (steps.usual || {}).wall_ms;
  const idle = unprofiled(summary, rank);
  const walls = usualSteps(steps).map((row) => row.wall_ms);
  const spread = walls.length > 1 ? ` (${ms(Math.min(...walls))} to ${ms(Math.max(...walls))})` : "";
  const all = known(window_.first) ? stepRange(window_.first, window_.last) : "";
  const range = all ? `profiled ${(steps.usual_steps || all).replace("-", "–")}` : "the whole recording";
  const unit = summary ? summary.unit || "step" : "step";
  const value = known(idle) ? idle : summary ? summary.step_ms : mean;
  const from = known(idle)
    ? [`median of ${summary ? summary.steps : "the unprofiled steps"}`, known(mean) && `${range}: ${ms(mean)}${spread}`]
    : known(value)
      ? [`${range}${spread}`]
      : [`${(summary || {}).profiled_steps || "nothing"} was recorded`];
  return el(
    "div",
    { class: "step-time" },
    el("p", null, el("strong", null, ms(value)), unit === "recording" ? " in all" : ` per ${unit}`),
    el("p", { class: "muted" }, from.filter(Boolean).join("; ")),
  );
}

function stats(window_, details, rank) {
  const steps = details.steps || {};
  const mean = steps.usual || {};
  const does = { validation: "with validation", checkpoint: "with a checkpoint" };
  const found = (steps.others || []).map((each) =>
    stat(ms(each.wall_ms), `a step ${does[each.kind]} (${each.count} of ${steps.count} profiled)`),
  );
  if (known(mean.busy_ms) && mean.busy_ms > 1.05 * mean.wall_ms)
    found.push(stat(ms(mean.busy_ms), "device work per step: the host runs ahead of the device"));
  const wait = waited(window_, rank);
  if (wait >= 0.05) found.push(stat(percent(wait), "waiting for other ranks", meaning("ranks", "wait")));
  const busy = meaning("steps", "device busy, idle");
  if (known(mean.busy_share)) found.push(stat(percent(mean.busy_share), "device busy", busy));
  const why = rowsOf((details.device || {}).parts).find((row) => row.kind === "idle");
  if (why && why.ms >= 0.05 * mean.wall_ms)
    found.push(stat(percent(why.ms / mean.wall_ms), `device idle: ${why.part}`, busy));
  return found.length ? el("div", { class: "stats" }, found) : null;
}

const STEPS_BY = {
  loader: "step: from one fetched batch to the next",
  optimizer: "step: one update of the optimizer",
  batches: "step: one fetched batch",
  backward: "step: one backward pass",
  call: "step: one call of the model",
  process: "the recorded part of the script",
};

/* How `perfhooks run` detected steps in a script that does not report them. */
function stepsBy(said) {
  if (!said) return null;
  const count = (value, word, many) => (known(value) ? `${value} ${value === 1 ? word : many}` : null);
  const rounded = (mean) => (known(mean) ? Number(mean.toPrecision(3)) : null);
  const [fetches, updates] = [rounded(said.fetches), rounded(said.updates)];
  const counts = [count(fetches, "fetch", "fetches"), count(updates, "update", "updates")];
  const each = counts.filter(Boolean).join(" and ");
  return `${STEPS_BY[said.what] || said.what}${each ? ` (${each} each)` : ""}`;
}

function heading(window_, details, rank) {
  const subject = details.subject || {};
  const place = subject.device_traced
    ? subject.device || (subject.model ? "a device" : null)
    : subject.model
      ? "CPU"
      : null;
  const what = [subject.model, place].filter(Boolean).join(" on ");
  const versions = rank.versions || DATA.run.versions || {};
  const command = (DATA.run.command || [DATA.title]).join(" ");
  const count = (details.steps || {}).count;
  const pieces = [
    windowName(window_),
    rank.partial ? `cut short: ${rank.partial}` : null,
    subject.world_size > 1 || DATA.run.world_size > 1
      ? `rank ${rank.rank} of ${DATA.run.world_size || subject.world_size}`
      : null,
    window_.time
      ? new Date(window_.time * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })
      : null,
    stepsBy(DATA.run.steps_by),
    ...Object.entries(versions).map(([name, version]) => `${name} ${version}`),
  ];
  return el(
    "div",
    { class: "heading" },
    el("h1", null, what || (known(count) ? `${plural(count, "step")} of ${DATA.title}` : DATA.title)),
    el(
      "p",
      { class: "meta" },
      pieces.filter(Boolean).map((each) => el("span", null, each)),
    ),
    command ? el("p", { class: "command mono", title: command }, command) : null,
  );
}

function gain(finding) {
  if (!known(finding.gain_ms)) return null;
  const whole = finding.is_percent_of_run ? " of the run" : "";
  return el(
    "p",
    { class: "gain", title: estimate(finding) },
    `Gain: ${finding.is_bound ? "at most" : "about"} `,
    el("strong", null, ms(finding.gain_ms)),
    ` a step${known(finding.gain_percent) ? `, ${percent(finding.gain_percent / 100)}${whole}` : ""}`,
  );
}

function evidenceLines(finding) {
  return (finding.evidence || []).map((line) => line.text);
}

function estimate(finding) {
  return [finding.estimate, finding.basis].filter(Boolean).join(" ");
}

function measured(finding) {
  const tried = (DATA.tried || []).find((each) => each.rule === finding.rule);
  if (!tried) return null;
  const operators = `${plural(tried.operators, "operator")} run again on ${tried.device}; if nothing else changes`;
  const where = tried.operators ? operators : `${tried.device}, compared in interleaved blocks`;
  const range = (write) => (tried.most ? `${write(tried)} to ${write(tried.most)}` : write(tried));
  const times = range((end) => digits(end.times));
  const saved = `${range((end) => ms(end.saved_ms))} a step, ${range((end) => percent(end.saved_percent / 100))}`;
  return el(
    "p",
    { class: "gain measured", title: where },
    `Measured here (${tried.variant}): `,
    el("strong", null, `${times} times as fast`),
    `, ${saved}`,
  );
}

function findingItem(finding, links) {
  return el(
    "li",
    { class: "finding" },
    el("h3", null, links(finding.title)),
    gain(finding),
    measured(finding),
    el(
      "ul",
      { class: "evidence" },
      evidenceLines(finding).map((line) => el("li", null, links(line))),
    ),
    el(
      "details",
      null,
      el("summary", null, "What to do"),
      el("p", null, finding.advice),
      finding.code
        ? el(
            "div",
            { class: "code" },
            el("pre", { tabindex: "0" }, finding.code),
            copyButton("Copy", "Copy these lines", () => finding.code),
          )
        : null,
      finding.estimate ? el("p", { class: "muted" }, `How the gain was estimated: ${estimate(finding)}`) : null,
    ),
  );
}

function weight(finding) {
  return finding.gain_ms || 0;
}

function findings(details) {
  // by falling gain, for findings about the window and the run
  const found = [...(DATA.findings || []), ...((details.findings || {}).rows || [])]
    .filter((finding) => !finding.doubts_others)
    .sort((a, b) => weight(b) - weight(a));
  if (!found.length) {
    const text = details.findings
      ? `No rule found a problem. The rules checked ${percent(details.findings.accounted)} of the step time. ` +
        "The tables under Work and Code show which operators and functions take the time."
      : "The rules that look for problems did not run on this window.";
    return el("div", { class: "findings" }, el("h2", null, "What to do first"), el("p", null, text));
  }
  const rest = found.slice(3);
  const links = evidenceLinks(details);
  return el(
    "div",
    { class: "findings" },
    el("h2", null, "What to do first"),
    el(
      "ol",
      null,
      found.slice(0, 3).map((each) => findingItem(each, links)),
    ),
    rest.length
      ? el(
          "details",
          { class: "rest" },
          el("summary", null, plural(rest.length, "more finding")),
          el(
            "ol",
            { start: 4 },
            rest.map((each) => findingItem(each, links)),
          ),
        )
      : null,
  );
}

/* The most important reason to doubt the numbers, with a link to the others. */
function warning(window_, details, rank) {
  const summary = summaryOf(window_, rank);
  const first = ((details.findings || {}).rows || []).find((finding) => finding.doubts_others);
  const count =
    rowsOf((details.checks || {}).rows).filter((each) => each.severity !== "info").length +
    (details.problems || []).length;
  const text = (summary || {}).warning || (first || {}).title || (count ? "Some of these numbers may be wrong." : null);
  if (!text) return null;
  return el("p", { class: "doubt" }, `${text} `, el("a", { href: address("checks", {}) }, "See all doubts"));
}

function overview(window_, details, rank) {
  const steps = details.steps || {};
  const rows = rowsOf(steps.rows);
  const usual = usualSteps(steps);
  const box = el(
    "section",
    { id: "overview", class: "overview", "aria-label": "Overview" },
    heading(window_, details, rank),
  );
  if (!rows.length) {
    const none = el("p", { class: "good" }, "This window has no steps and no work that could be shown.");
    box.append(...[none, slowLine()].filter(Boolean));
    return box;
  }
  const lines = [
    stepTime(window_, details, rank),
    warning(window_, details, rank),
    stats(window_, details, rank),
    slowLine(),
  ];
  box.append(...lines.filter(Boolean));
  const summary = summaryOf(window_, rank);
  const hosted = presentParts(rows, PARTS).length > 0;
  const onDevice = rowsOf((details.device || {}).steps);
  const usualNumbers = new Set(usual.map((row) => row.step));
  const usualOnDevice = onDevice.filter((row) => usualNumbers.has(row.step));
  const mean = usual.reduce((sum, row) => sum + row.wall_ms, 0) / usual.length;
  const bySummary = summary && summary.parts && known(summary.step_ms);
  const onHost = bySummary ? summaryParts(summary) : meanParts(usual, PARTS);
  const whole = bySummary ? summary.step_ms : mean;
  const baseline = unprofiled(summary, rank);
  const end = cutOf([...rows.map((row) => row.wall_ms), baseline]);
  const shown = [...presentParts(rows, hosted ? PARTS : []), ...presentParts(onDevice, ON_DEVICE)];
  const left = el(
    "div",
    { class: "where-time" },
    el("h2", null, "Where the time goes"),
    el(
      "div",
      { class: "pair" },
      hosted ? sharesTable("Host", onHost, whole, "steps", ["host parts"]) : null,
      onDevice.length ? sharesTable("Device", meanParts(usualOnDevice, ON_DEVICE), mean, "steps", DEVICE_TERMS) : null,
    ),
    hosted || onDevice.length
      ? [
          el("h3", null, known(window_.first) ? `Profiled ${stepRange(window_.first, window_.last)}` : "The recording"),
          hosted && onDevice.length ? el("p", { class: "muted" }, "Host") : null,
          hosted ? barsFigure("Where each step goes on the host", rows, PARTS, { baseline, end }) : null,
          hosted && onDevice.length ? el("p", { class: "muted" }, "Device") : null,
          onDevice.length ? barsFigure("Where each step goes on the device", onDevice, ON_DEVICE, { end }) : null,
          partsLegend(shown),
        ]
      : null,
    details.counters ? countersFigure(details.counters) : null,
  );
  box.append(el("div", { class: "split" }, left, findings(details)));
  return box;
}
