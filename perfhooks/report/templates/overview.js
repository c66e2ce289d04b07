// The first screen: what was profiled, what a step takes, where it goes, and what to do about it.

function sharesTable(title, rows, parts, whole, note) {
  const mean = (key) => rows.reduce((sum, row) => sum + (row[key] || 0), 0) / rows.length;
  const lines = presentParts(rows, parts).map(([key, label]) =>
    el(
      "tr",
      null,
      el(
        "th",
        { scope: "row" },
        el("i", { class: "chip", style: { background: `var(--part-${key.replace("_ms", "").replace(/_/g, "-")})` } }),
        label,
      ),
      el("td", { class: "num" }, mean(key).toFixed(Math.max(decimals([whole]) - (whole >= 100 ? 0 : 1), 1))),
      el("td", { class: "num share" }, percent(mean(key) / whole)),
    ),
  );
  return el(
    "table",
    { class: "shares" },
    el("caption", null, title, note ? el("span", { class: "muted" }, ` ${note}`) : null),
    el(
      "thead",
      { class: "hidden" },
      el(
        "tr",
        null,
        ["part", "ms a step", "share"].map((each) => el("th", { scope: "col" }, each)),
      ),
    ),
    el("tbody", null, lines),
  );
}

function stat(value, label, title) {
  return el("div", { class: "stat", title }, el("strong", null, value), el("span", null, label));
}

// the share of its steps in which a rank only waited for others, whatever part of a step that fell into
function waited(window_, rank) {
  const told = ((DATA.ranks_together || {}).windows || {})[window_.name] || {};
  const row = rowsOf(told.ranks).find((each) => each.rank === rank.rank);
  return row ? row.wait_ms / row.wall_ms : 0;
}

// the steps that neither validate nor save a checkpoint: what is said of a step is said of these
function usualSteps(steps) {
  const rows = rowsOf(steps.rows);
  const found = rows.filter((_, place) => !(steps.kinds || [])[place]);
  return found.length ? found : rows;
}

function otherSteps(steps) {
  const does = { validation: "it validates", checkpoint: "it saves a checkpoint" };
  return (steps.others || [])
    .map((each) => `; ${ms(each.wall_ms)} where ${does[each.kind]} (${each.count} of ${steps.count})`)
    .join("");
}

function stats(window_, details, rank) {
  const steps = details.steps || {};
  const mean = steps.usual || steps.mean || {};
  const walls = usualSteps(steps).map((row) => row.wall_ms);
  const spread = [Math.min(...walls), Math.max(...walls)];
  const step = mean.wall_ms;
  const found = [];
  const idle = (rank.cost || {}).idle_step_ms;
  const isFar = rank.is_far;
  if (isFar) found.push(stat(ms(idle), "a step when nobody records, the median"));
  if (known(step)) {
    const what = isFar ? "a recorded step" : "a step";
    const label =
      walls.length > 1
        ? `${what}: the mean of ${walls.length}, ${ms(spread[0])} to ${ms(spread[1])}`
        : steps.without_steps
          ? "from start to stop: nobody said what a step is"
          : isFar
            ? "the recorded step"
            : "the step";
    found.push(stat(ms(step), label + otherSteps(steps)));
  }
  const named = PARTS.filter(([key]) => key !== "other_ms" && known(mean[key])).sort(
    (a, b) => mean[b[0]] - mean[a[0]],
  )[0];
  const verbs = {
    data: "of it waiting for data",
    transfer: "of it in transfers",
    checkpoint: "of it writing checkpoints",
  };
  if (named && mean[named[0]] > 0)
    found.push(stat(percent(mean[named[0]] / mean.wall_ms), verbs[named[1]] || `of it in ${named[1]}`));
  // the host runs ahead of its device: these steps are shorter than those of the training
  if (known(mean.busy_ms) && mean.busy_ms > 1.05 * step)
    found.push(stat(ms(mean.busy_ms), "of work for the device in each: the host runs ahead of it"));
  const wait = waited(window_, rank);
  if (wait >= 0.05) found.push(stat(percent(wait), "of it waiting for other ranks", (DEFINITIONS.Ranks || {}).wait));
  const busy = (DEFINITIONS.Steps || {})["device busy, idle"];
  if (known(mean.busy_share)) found.push(stat(percent(mean.busy_share), "device busy", busy));
  const why = rowsOf((details.device || {}).parts).find((row) => row.kind === "idle");
  if (why && why.ms >= 0.05 * step) found.push(stat(percent(why.ms / step), `device idle: ${why.part}`, busy));
  if (known(idle) && known(step) && !isFar) {
    const added = step / idle - 1;
    // steps that differ more among themselves than from the others prove nothing
    const certain = spread[1] - spread[0] < Math.max(step - idle, 0.1 * step);
    found.push(
      stat(
        ms(idle),
        certain && Math.abs(added) < 0.01
          ? "when not recorded: recording cost less than 1%"
          : certain && added > 0
            ? `when not recorded: recording added ${percent(added)}`
            : "when not recorded, the median",
      ),
    );
  }
  return el("div", { class: "stats" }, found);
}

const STEPS_BY = {
  loader: "a fetch after an update ends a step",
  optimizer: "an update ends a step",
  batches: "a fetch ends a step",
  backward: "a backward pass ends a step",
  call: "a call of the model begins a step",
  process: "the script as a whole, as far as it was recorded",
};

/* How `perfhooks run` told steps, in a script that did not say so itself. */
function stepsBy(said) {
  if (!said) return null;
  const count = (value, word, many) =>
    known(value) ? `${Number(value.toPrecision(3))} ${value === 1 ? word : many}` : null;
  const counts = [count(said.fetches, "fetch", "fetches"), count(said.updates, "update", "updates")];
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
  return el(
    "p",
    { class: "gain", title: finding.estimate },
    `Gain: ${finding.is_bound ? "at most" : "about"} `,
    el("strong", null, ms(finding.gain_ms)),
    ` a step${known(finding.gain_percent) ? `, ${percent(finding.gain_percent / 100)}` : ""}`,
  );
}

function measured(finding) {
  const tried = (DATA.tried || []).find((each) => each.rule === finding.rule);
  if (!tried) return null;
  const where = `${plural(tried.operators, "operator")} run again on ${tried.device}; if nothing else changes`;
  const range = (write) => (tried.most ? `${write(tried)} to ${write(tried.most)}` : write(tried));
  const times = range((end) => end.times.toPrecision(2));
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
      (finding.evidence || []).map((line) => el("li", null, links(line))),
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
      finding.estimate ? el("p", { class: "muted" }, `How the gain was estimated: ${finding.estimate}`) : null,
    ),
  );
}

function weight(finding) {
  return finding.doubts_others ? -1 : finding.gain_ms || 0;
}

function findings(details) {
  // what gains most first, whoever found it
  const found = [...(DATA.findings || []), ...((details.findings || {}).rows || [])].sort(
    (a, b) => weight(b) - weight(a),
  );
  if (!found.length) {
    const text = details.findings
      ? `Nothing wrong was found: every rule looked at this window, and ${percent(details.findings.accounted)} of ` +
        `the step is accounted for.`
      : "The rules that look for problems did not run on this window.";
    return el("div", { class: "findings" }, el("h2", null, "What to do first"), el("p", { class: "good" }, text));
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

/* What makes every time of the window doubtful is said before them. */
function busyLines(details) {
  const found = ((details.findings || {}).rows || []).filter((finding) => finding.doubts_others);
  return found.map((finding) => el("p", { class: "busy-line" }, finding.title));
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
  const lines = [...busyLines(details), stats(window_, details, rank), explanationLine(details, rank), slowLine()];
  box.append(...lines.filter(Boolean));
  const whole = usual.reduce((sum, row) => sum + row.wall_ms, 0) / usual.length;
  const hosted = presentParts(rows, PARTS).length > 0;
  const onDevice = rowsOf((details.device || {}).steps);
  const usualOnDevice = usualSteps({ ...steps, rows: (details.device || {}).steps });
  const cost = rank.cost || {};
  const left = el(
    "div",
    { class: "where-time" },
    el("h2", null, "Where the step goes"),
    hosted || onDevice.length ? stepsFigure(rows, onDevice, hosted ? cost.idle_step_ms : null) : null,
    el(
      "div",
      { class: "pair" },
      hosted ? sharesTable("Host", usual, PARTS, whole, "ms a step") : null,
      onDevice.length ? sharesTable("Device", usualOnDevice, ON_DEVICE, whole, "ms a step") : null,
    ),
    details.counters ? countersFigure(details.counters) : null,
  );
  box.append(el("div", { class: "split" }, left, findings(details)));
  const doubts =
    rowsOf((details.checks || {}).rows).filter((each) => each.severity !== "info").length +
    (details.problems || []).length;
  if (doubts)
    box.append(
      el(
        "p",
        { class: "doubt" },
        `${plural(doubts, "thing makes", "things make")} these numbers doubtful: `,
        el("a", { href: "#checks" }, "see how far they can be trusted"),
        ".",
      ),
    );
  return box;
}
