// Everything below the first screen, one function for each section; it returns null if there is no data.

const className = (name) => (name === "set" ? "memset" : name);

function kernelsSection(details) {
  if (!details.kernels) return null;
  const of = (term) => meaning("kernels", term);
  const columns = [
    { key: "name", label: "Kernel", kind: "name", show: kernelName },
    { key: "class", word: true, label: "Class", kind: "text", show: className, title: of("class") },
    { key: "count", label: "Count", kind: "count" },
    { key: "total_ms", label: "Total, ms", kind: "ms", bar: true, title: of("total") },
    { key: "mean_ms", label: "Mean, ms", kind: "ms" },
    { key: "max_ms", label: "Max, ms", kind: "ms" },
    ...rateColumns(),
    { key: "occupancy_percent", label: "Occupancy, %", kind: "percent", title: of("occupancy") },
    { key: "gap_before_ms", label: "Gap before, ms", kind: "ms", title: of("gap before") },
    { key: "operators", label: "Launched by", kind: "text", title: of("launched by") },
  ];
  const classes = rowsOf(details.kernels.classes);
  const whole = classes.reduce((sum, each) => sum + each.total_ms, 0);
  const shares = classes.map((each) => `${className(each.class)} ${percent(each.total_ms / whole)}`);
  const lead = `Device work: ${shares.join(", ")} of ${ms(whole)}.`;
  return section(
    "kernels",
    "Kernels",
    lead,
    dataTable({
      id: "kernels",
      caption: "Kernels, copies and memsets",
      columns,
      rows: rowsOf(details.kernels.rows),
      sort: { key: "total_ms", descending: true },
      search: "Search kernels",
      total: details.kernels.count,
    }),
  );
}

function labelsSection(details) {
  if (!height(details.labels)) return null;
  const of = (term) => meaning("labels", term);
  const columns = [
    { key: "name", label: "Label", kind: "name" },
    { key: "calls", label: "Calls", kind: "count" },
    { key: "total_ms", label: "Total, ms", kind: "ms", bar: true, title: of("total") },
    { key: "percent", label: "Share, %", kind: "percent", title: of("share") },
    { key: "mean_ms", label: "Mean, ms", kind: "ms" },
    { key: "self_ms", label: "Self, ms", kind: "ms", title: of("self") },
    { key: "device_ms", label: "Device, ms", kind: "ms", title: of("device") },
  ];
  const rows = rowsOf(details.labels);
  const [own, others] = [rows.filter((row) => row.own), rows.filter((row) => !row.own)];
  const groups = { own: { label: "Yours", columns, rows: own } };
  if (others.length) groups.all = { label: "All", columns, rows };
  return section(
    "labels",
    "Your labels",
    "Your labels and their time on the host, summed over all profiled steps.",
    dataTable({
      id: "labels",
      caption: "Labels",
      groups,
      group: "own",
      sort: { key: "total_ms", descending: true },
      limit: 12,
    }),
  );
}

function functionsSection(details) {
  if (!details.functions) return null;
  const of = (term) => meaning("functions", term);
  const columns = [
    { key: "function", label: "Function", kind: "name", show: frameName },
    { key: "calls", label: "Calls", kind: "count", title: of("calls") },
    { key: "self_ms", label: "Self, ms", kind: "ms", bar: true, title: of("self") },
    { key: "total_ms", label: "Total, ms", kind: "ms", bar: true, title: of("total") },
    { key: "mean_ms", label: "Mean, ms", kind: "ms" },
    { key: "file", word: true, label: "File", kind: "text", show: shortPath },
    { key: "line", label: "Line", kind: "id", title: of("line") },
  ];
  return section(
    "functions",
    "Python functions",
    explanationLead(
      details,
      "Time of each Python function, without and with the functions that it called, summed over the recorded steps.",
    ),
    dataTable({
      id: "functions",
      key: "function",
      caption: "Python functions",
      columns,
      rows: rowsOf(details.functions.rows),
      sort: { key: "self_ms", descending: true },
      search: "Search functions",
      total: details.functions.count,
    }),
  );
}

function flameSection(details) {
  const flames = details.flames;
  if (!flames || !Object.keys(flames).length) return null;
  const frames = (details.subject || {}).python_frames || details.explanation;
  const lead = frames
    ? "A frame is as wide as its time; its callees are below it. Click a frame to zoom in, click it again to zoom out."
    : `Labels, operators and kernels. For lines of Python record with ${details.subject.stacks_by}.`;
  return section("flame", "Flame graph", explanationLead(details, lead), flameGraph(flames, "flame"));
}

function modulesSection(details) {
  if (!details.modules) return null;
  const of = (term) => meaning("modules", term);
  const columns = [
    {
      key: "name",
      label: "Module",
      kind: "name",
      node: (value, row) => el("span", { class: "indent", style: { "--depth": row.depth } }, value),
    },
    { key: "qualified_name", label: "In the model", kind: "name", title: of("in the model") },
    { key: "calls", label: "Calls", kind: "count" },
    { key: "forward_ms", label: "Forward, ms", kind: "ms", bar: true, title: of("forward") },
    { key: "forward_self_ms", label: "Self, ms", kind: "ms", title: of("forward") },
    { key: "forward_device_ms", label: "Device forward, ms", kind: "ms", title: of("device forward, backward") },
    { key: "backward_ms", label: "Backward, ms", kind: "ms", bar: true, title: of("backward") },
    { key: "backward_device_ms", label: "Device backward, ms", kind: "ms", title: of("device forward, backward") },
  ];
  return section(
    "modules",
    "Modules",
    explanationLead(
      details,
      "The tree of modules in the order of their first calls; a row includes the rows below it.",
    ),
    dataTable({
      id: "modules",
      caption: "Modules",
      columns,
      rows: rowsOf(details.modules.rows),
      search: "Search modules",
      limit: 24,
      total: details.modules.count,
    }),
  );
}

function memorySection(details) {
  const memory = details.memory;
  if (!memory || !memory.over_time) return null;
  const peaks = rowsOf(memory.peak);
  peaks.sort(
    (a, b) =>
      (a.device.startsWith("cpu") ? 1 : 0) - (b.device.startsWith("cpu") ? 1 : 0) ||
      b.allocated_bytes - a.allocated_bytes,
  );
  const place = el("div");
  const columns = [
    { key: "operator", label: "Allocated by", kind: "name" },
    { key: "source", word: true, label: "Line", kind: "name", show: frameName },
    { key: "count", label: "Allocations", kind: "count" },
    { key: "bytes", label: "Bytes", kind: "bytes", bar: true },
  ];
  function show(device) {
    const peak = peaks.find((each) => each.device === device);
    const when = known(peak.step) ? `in step ${peak.step}` : `after ${ms(peak.time_ms)}`;
    const mine = rowsOf(memory.alive).filter((row) => row.device === device);
    place.replaceChildren(
      memoryFigure(device, memory.over_time[device], peak),
      el("h3", null, `Alive at the peak: ${bytes(peak.allocated_bytes)} ${when}`),
      dataTable({
        id: "alive",
        caption: "Alive at the peak",
        columns,
        rows: mine,
        sort: { key: "bytes", descending: true },
        limit: 10,
      }),
    );
    drawFigures();
  }
  const tools =
    peaks.length > 1
      ? el(
          "div",
          { class: "tools" },
          segmented(
            "Memory of",
            peaks.map((each) => [each.device, each.device]),
            peaks[0].device,
            show,
          ),
        )
      : null;
  queueMicrotask(() => show(peaks[0].device));
  return section("memory", "Memory", null, tools, place);
}

function communicationSection(details) {
  const of = (term) => meaning("communication", term);
  const made = [];
  const add = (id, title, table, columns, key) => {
    if (height(table))
      made.push(
        el("h3", null, title),
        dataTable({ id, caption: title, columns, rows: rowsOf(table), sort: { key, descending: true }, limit: 10 }),
      );
  };
  add(
    "collectives",
    "Collectives",
    details.collectives,
    [
      { key: "operation", label: "Operation", kind: "name" },
      { key: "backend", word: true, label: "Backend", kind: "text" },
      { key: "group_description", word: true, label: "Group", kind: "text" },
      { key: "group_size", label: "Ranks", kind: "count" },
      { key: "dtype", word: true, label: "Type", kind: "text" },
      { key: "count", label: "Count", kind: "count" },
      { key: "total_ms", label: "Total, ms", kind: "ms", bar: true },
      { key: "exposed_ms", label: "Exposed, ms", kind: "ms" },
      { key: "bytes", label: "Bytes", kind: "bytes" },
      { key: "median_bytes", label: "Message, median", kind: "bytes", title: of("message") },
      { key: "bus_gb_per_s", label: "Bus, GB/s", kind: "number", title: of("bus bandwidth") },
    ],
    "total_ms",
  );
  add(
    "copies",
    "Copies",
    details.copies,
    [
      { key: "kind", label: "Copy", kind: "name" },
      { key: "source", word: true, label: "From", kind: "text" },
      { key: "target", word: true, label: "To", kind: "text" },
      { key: "blocking", word: true, label: "Blocking", kind: "text", title: of("blocking") },
      { key: "count", label: "Count", kind: "count" },
      { key: "total_ms", label: "Total, ms", kind: "ms", bar: true },
      { key: "bytes", label: "Bytes", kind: "bytes" },
      { key: "gb_per_s", label: "GB/s", kind: "number" },
      { key: "host_ms", label: "Host, ms", kind: "ms", title: of("host, of a copy") },
      { key: "operator", label: "Launched by", kind: "name" },
    ],
    "total_ms",
  );
  add(
    "synchronisations",
    "Host waits for the device",
    details.synchronisations,
    [
      { key: "call", label: "Call", kind: "name" },
      { key: "operator", label: "Operator", kind: "name" },
      { key: "line", label: "Line", kind: "name", show: frameName },
      { key: "count", label: "Count", kind: "count" },
      { key: "host_ms", label: "Host wait, ms", kind: "ms", bar: true, title: of("host wait") },
      { key: "bytes", label: "Bytes copied", kind: "bytes" },
    ],
    "host_ms",
  );
  return made.length ? section("communication", "Communication and waiting", null, ...made) : null;
}

const partColumn = ([key, label]) => ({
  key,
  label: `${label[0].toUpperCase()}${label.slice(1)}, ms`,
  kind: "ms",
  title: meaning("steps", "host parts"),
});

function meansColumns(first) {
  return [
    ...first,
    { key: "wall_ms", label: "Step, ms", kind: "ms", bar: true, title: meaning("steps", "mean step") },
    ...PARTS.map(partColumn),
    { key: "device_busy_ms", label: "Device busy, ms", kind: "ms" },
    { key: "exposed_comm_ms", label: "Exposed comm, ms", kind: "ms" },
    { key: "device_idle_ms", label: "Idle, ms", kind: "ms" },
  ];
}

// all columns of the table of steps except number, kind, wall time and host parts; term: the key in DEFINITIONS
const STEP_COLUMNS = [
  { key: "device_busy_ms", label: "Device busy, ms", kind: "ms", term: "device busy, idle" },
  { key: "device_idle_ms", label: "Device idle, ms", kind: "ms", term: "device busy, idle" },
  { key: "device_span_ms", label: "Device span, ms", kind: "ms", term: "device span", extra: true },
  { key: "busy_ms", label: "Device work, ms", kind: "ms", term: "device work", extra: true },
  { key: "compute_ms", label: "Compute, ms", kind: "ms", term: "compute", extra: true },
  { key: "comm_ms", label: "Communication, ms", kind: "ms", term: "communication", extra: true },
  { key: "exposed_comm_ms", label: "Exposed comm, ms", kind: "ms", term: "exposed communication" },
  { key: "exposed_copy_ms", label: "Exposed copies, ms", kind: "ms", term: "exposed copies", extra: true },
  { key: "other_work_ms", label: "Other work, ms", kind: "ms", term: "other steps' work", extra: true },
  { key: "idle_ms", label: "Idle in the span, ms", kind: "ms", term: "idle in the span", extra: true },
  { key: "sync_ms", label: "Syncs, ms", kind: "ms", term: "syncs", extra: true },
  { key: "ops", label: "Operators", kind: "count" },
  { key: "launches", label: "Launches", kind: "count", extra: true },
  { key: "kernels", label: "Kernels", kind: "count", extra: true },
  { key: "syncs", label: "Syncs", kind: "count", term: "syncs", extra: true },
  { key: "allocated_peak_mb", label: "Peak memory, MB", kind: "number", term: "peak memory" },
  { key: "alloc_count", label: "Allocations", kind: "count", extra: true },
  { key: "tflop", label: "TFLOP", kind: "number", term: "TFLOP", extra: true },
  { key: "mfu_percent", label: "MFU, %", kind: "percent", term: "MFU, HFU" },
  { key: "hfu_percent", label: "HFU, %", kind: "percent", term: "MFU, HFU", extra: true },
  { key: "known_percent", label: "Of which known, %", kind: "percent", term: "of which known", extra: true },
];

function stepsSection(details) {
  const steps = details.steps || {};
  const rows = rowsOf(steps.rows).map((row, place) => ({ ...row, kind: (steps.kinds || [])[place] || null }));
  if (!rows.some((row) => known(row.step))) return null;
  const of = (term) => meaning("steps", term);
  const columns = [
    { key: "step", label: "Number", kind: "id", title: of("step") },
    { key: "kind", label: "Kind", kind: "text", word: true, title: of("mean step") },
    { key: "wall_ms", label: "Step, ms", kind: "ms", bar: true, title: of("mean step") },
    ...PARTS.map(partColumn),
    ...STEP_COLUMNS.map(({ term, ...column }) => ({ ...column, title: of(term) })),
  ];
  const table = { id: "steps", key: "step", caption: "Steps", columns, rows, limit: 8, total: steps.count };
  return section("steps", "Steps", "The parts of each profiled step.", dataTable(table));
}

function windowsSection(current) {
  if (DATA.windows.length < 2) return null;
  const rows = DATA.windows.map((each, place) => ({
    $place: place,
    $current: each === current,
    name: windowName(each),
    ranks: each.ranks.length > 1 ? each.ranks.length : null,
    ...each.ranks[0].mean,
  }));
  const columns = meansColumns([
    {
      key: "name",
      label: "Window",
      kind: "name",
      node: (value, row) =>
        el("button", { type: "button", class: "plain", on: { click: () => pick(row.$place, null) } }, value),
    },
    { key: "ranks", label: "Ranks", kind: "count" },
  ]);
  return section(
    "windows",
    "Windows",
    "Means over the steps of each window, for its lowest rank.",
    dataTable({ id: "windows", caption: "Windows", columns, rows, limit: 20 }),
  );
}

function togetherColumns(node) {
  const of = (term) => meaning("ranks", term);
  return [
    { key: "rank", label: "Rank", kind: "text", node },
    { key: "node", word: true, label: "Node", kind: "text" },
    { key: "role", label: "Role", kind: "text", title: of("role") },
    { key: "wall_ms", label: "Step, ms", kind: "ms", title: meaning("steps", "mean step") },
    { key: "own_ms", label: "Own work, ms", kind: "ms", bar: true, title: of("own work") },
    { key: "wait_ms", label: "Wait, ms", kind: "ms", title: of("wait") },
    { key: "excess_ms", label: "Excess, ms", kind: "ms", title: of("excess") },
    { key: "slowest", word: true, label: "Slowest in", kind: "text", title: of("excess") },
    { key: "last_in", label: "Last in", kind: "text", title: of("last in") },
    { key: "busy_comm_ms", label: "Busy comm, ms", kind: "ms", title: of("busy communication") },
    { key: "exposed_comm_ms", label: "Exposed comm, ms", kind: "ms", title: of("busy communication") },
    { key: "offset_ms", label: "Clock offset, ms", kind: "ms", title: of("clock offset") },
  ];
}

function kindsColumns(clocks) {
  const of = (term) => meaning("ranks", term);
  const error = known(clocks.error_ms) ? ` (clocks ± ${ms(clocks.error_ms)})` : "";
  return [
    { key: "operation", label: "Operation", kind: "name" },
    { key: "group_size", label: "Ranks", kind: "count" },
    { key: "groups", label: "Groups", kind: "count" },
    { key: "dtype", word: true, label: "Type", kind: "text" },
    { key: "bytes", label: "Message", kind: "bytes", title: meaning("communication", "message") },
    { key: "count", label: "Count", kind: "count" },
    { key: "duration_ms", label: "Duration, ms", kind: "ms", title: of("duration") },
    { key: "spread_ms", label: `Spread of starts, ms${error}`, kind: "ms", title: of("spread of starts") },
    { key: "wait_ms", label: "Waiting for the last, ms", kind: "ms", bar: true, title: of("waiting for the last") },
    { key: "longest_wait_ms", label: "Longest wait, ms", kind: "ms" },
    { key: "bus_gb_per_s", label: "Bus, GB/s", kind: "number", title: of("duration") },
    { key: "last_rank", word: true, label: "Last rank", kind: "text", title: of("last rank") },
    { key: "last_percent", label: "Of all, %", kind: "percent", title: of("last rank") },
  ];
}

// the part of a rank's own work with the largest excess
function slowestPart(row) {
  const excess = (part) => row[`${part}_excess_ms`] || 0;
  const most = ["data", "compute", "communication", "other"].reduce((top, part) =>
    excess(part) > excess(top) ? part : top,
  );
  return row.excess_ms > 0 && excess(most) > 0 ? most : null;
}

function clocksText(clocks) {
  if (!known(clocks.error_ms)) return "The ranks have no common collective, so their clocks could not be aligned.";
  return (
    `The clocks of ${plural(clocks.ranks, "rank")} were aligned at the ends of collectives: half of ` +
    `all ends are within ${ms(clocks.error_ms)} of the others, 95 of 100 within ${ms(clocks.error_95_ms)}.`
  );
}

function missingList(together) {
  const entries = together.missing || [];
  if (!entries.length) return null;
  const rest = together.missing_count - entries.length;
  return [
    el("h3", null, "What is missing"),
    el(
      "ul",
      { class: "plain-list", id: "missing" },
      entries.map((each) => el("li", null, each.window ? `${each.window}: ${each.text}` : each.text)),
      rest > 0 ? el("li", null, `and ${plural(rest, "more thing")}`) : null,
    ),
  ];
}

// about all steps of the run, for any shown window
function frontierPart(together) {
  const groups = together.frontier || [];
  if (!groups.length) return null;
  const of = (term) => meaning("ranks", term);
  const longest = groups.reduce((top, group) => (group.step_ms > top.step_ms ? group : top));
  const leads = groups.flatMap((group) => group.leads || []);
  const none = groups.some((group) => group.leads)
    ? "No rank is a straggler beyond chance."
    : "The hosts run ahead of their devices, so the recorded windows show who is late.";
  return [
    el("h3", null, "Stragglers over the whole run"),
    el(
      "p",
      { class: "lead" },
      `${plural(longest.steps, "unprofiled step")} of ${longest.stage}, ${longest.first} to ` +
        `${longest.last}: ${ms(longest.step_ms)} from one synchronisation of the ranks to the next. `,
      groups.length > 1 ? `Ranks are compared with those that do the same work, in ${groups.length} groups. ` : null,
      leads.length ? null : none,
    ),
    leads.length
      ? el(
          "ul",
          { class: "plain-list", id: "leads" },
          leads.map((each) => el("li", null, `${each.text}.`)),
        )
      : null,
    dataTable({
      id: "frontier",
      caption: "Stragglers over the whole run",
      columns: [
        ...(groups.length > 1 ? [{ key: "ranks", label: "Ranks", kind: "text" }] : []),
        { key: "name", label: "Part", kind: "text", title: of("part") },
        { key: "exposed_ms", label: "Exposed, ms", kind: "ms", title: of("exposed") },
        { key: "rank", label: "Rank mostly last", kind: "text", title: of("mostly last") },
        { key: "percent", label: "Of the steps, %", kind: "percent", title: of("mostly last") },
      ],
      // ranks as strings: the table omits numeric columns that contain only 0
      rows: groups.flatMap((group) =>
        rowsOf(group.stages).map((row) => ({ ...row, rank: String(row.rank), ranks: someOf(group.ranks) })),
      ),
      limit: 16,
    }),
  ];
}

function someOf(ranks) {
  return ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", ");
}

// ranks grouped by a key, if there are several groups; a table of thousands of ranks is too long to read
function ranksBy(key, label, ranks) {
  const found = new Map();
  for (const row of ranks) found.set(row[key], [...(found.get(row[key]) || []), row]);
  if (found.size < 2 || found.size === ranks.length) return {};
  const mean = (rows, column) => rows.reduce((sum, row) => sum + (row[column] || 0), 0) / rows.length;
  const rows = [...found].map(([name, mine]) => {
    const last = mine.reduce((top, row) => (row.own_ms > top.own_ms ? row : top));
    return {
      name: known(name) ? String(name) : "unknown",
      ranks: mine.length,
      own_ms: mean(mine, "own_ms"),
      wait_ms: mean(mine, "wait_ms"),
      longest_ms: last.own_ms,
      rank: String(last.rank),
    };
  });
  const columns = [
    { key: "name", label: key === "node" ? "Node" : "Role", kind: "text" },
    { key: "ranks", label: "Ranks", kind: "count" },
    { key: "own_ms", label: "Own work, ms", kind: "ms", bar: true, title: meaning("ranks", "own work") },
    { key: "wait_ms", label: "Wait, ms", kind: "ms", title: meaning("ranks", "wait") },
    { key: "longest_ms", label: "Longest own work, ms", kind: "ms" },
    { key: "rank", label: "Of rank", kind: "text" },
  ];
  return { [key]: { label, columns, rows } };
}

const RANK_PARTS = "data, compute, communication, other";

function ranksSection(window_, rank) {
  const together = DATA.ranks_together;
  if (!together) return meansSection(window_, rank);
  const told = (together.windows || {})[window_.name];
  const rows = rowsOf((told || {}).ranks).map((row) => ({
    $current: row.rank === rank.rank,
    ...row,
    role: known(row.role) ? String(row.role) : null,
    slowest: slowestPart(row),
    last_in: row.large ? `${row.last} of ${row.large}` : null,
  }));
  if (!rows.length) {
    const why = together.problem ? `The ranks could not be compared: ${together.problem}` : null;
    const more = [why ? el("p", { class: "doubt" }, why) : null, frontierPart(together), missingList(together)];
    return meansSection(window_, rank, more);
  }
  const here = new Set(window_.ranks.map((each) => each.rank));
  const button = (value) =>
    here.has(value)
      ? el("button", { type: "button", class: "plain", on: { click: () => pick(null, value) } }, value)
      : String(value);
  const whole = rows.reduce((sum, row) => sum + row.wall_ms, 0) / rows.length;
  const own = rows
    .map((row) => row.own_ms)
    .filter(known)
    .sort((a, b) => a - b);
  const late = rows.filter((row) => row.is_straggler).sort((a, b) => b.excess_ms - a.excess_ms);
  const lead =
    own.length > 1
      ? `A step takes ${ms(whole)}. The own work of ranks is ${ms(own[0])} to ${ms(own[own.length - 1])}.${late
          .slice(0, 4)
          .map(
            (row) =>
              ` Rank ${row.rank} is a straggler: ${ms(row.excess_ms)} more own work than the others` +
              `${row.slowest ? `, mostly in ${row.slowest}` : ""}.`,
          )
          .join("")}`
      : null;
  const groups = {
    together: { label: "Compared", columns: togetherColumns(button), rows },
    means: {
      label: "Parts of the step",
      columns: meansColumns([{ key: "rank", label: "Rank", kind: "text", node: button }]),
      rows: meansRows(window_, rank),
    },
    ...ranksBy("node", "By node", rows),
    ...ranksBy("role", "By role", rows),
  };
  // the rank as a string: the table omits numeric columns that contain only 0
  const kinds = rowsOf(told.collectives).map((row) => ({
    ...row,
    last_rank: known(row.last_rank) ? String(row.last_rank) : null,
  }));
  return section(
    "ranks",
    "Ranks",
    lead,
    el(
      "div",
      { class: "split" },
      el(
        "div",
        null,
        barsFigure("Where each rank’s step goes", rows, OF_RANKS),
        partsLegend(presentParts(rows, OF_RANKS)),
      ),
      sharesTable("Mean of all ranks", meanParts(rows, OF_RANKS), whole, "ranks", ["own work", RANK_PARTS, "wait"]),
    ),
    frontierPart(together),
    el("h3", null, "Step time of each rank"),
    dataTable({
      id: "ranks",
      caption: "Ranks",
      groups,
      group: "together",
      sort: { key: "own_ms", descending: true },
      limit: 16,
    }),
    el("h3", null, "Collectives over ranks"),
    el(
      "p",
      { class: "lead" },
      clocksText(told.clocks || {}),
      told.unmatched
        ? ` ${plural(told.unmatched, "call")} could not be matched to calls on other ranks and ` +
            `${told.unmatched === 1 ? "is" : "are"} left out.`
        : null,
    ),
    kinds.length
      ? dataTable({
          id: "together",
          caption: "Collectives over ranks",
          columns: kindsColumns(told.clocks || {}),
          rows: kinds,
          limit: 10,
        })
      : null,
    missingList(together),
  );
}

const meansRows = (window_, rank) =>
  window_.ranks.map((each) => ({ $current: each.rank === rank.rank, rank: each.rank, ...each.mean }));

// means of each rank, if ranks could not be compared
function meansSection(window_, rank, more) {
  if (window_.ranks.length < 2) return more && more.some(Boolean) ? section("ranks", "Ranks", null, ...more) : null;
  const rows = meansRows(window_, rank);
  const walls = rows
    .map((row) => row.wall_ms)
    .filter(known)
    .sort((a, b) => a - b);
  const slowest = rows.reduce((top, row) => ((row.wall_ms || 0) > (top.wall_ms || 0) ? row : top), rows[0]);
  const lead =
    walls.length > 1
      ? `A step takes ${ms(walls[0])} to ${ms(walls[walls.length - 1])}; rank ${slowest.rank} is the slowest.`
      : null;
  const columns = meansColumns([
    {
      key: "rank",
      label: "Rank",
      kind: "text",
      node: (value) => el("button", { type: "button", class: "plain", on: { click: () => pick(null, value) } }, value),
    },
  ]);
  return section(
    "ranks",
    "Ranks",
    lead,
    dataTable({ id: "ranks", caption: "Ranks", columns, rows, sort: { key: "wall_ms", descending: true }, limit: 16 }),
    ...(more || []),
  );
}

function timelineSection(window_) {
  const rows = rowsOf((DATA.timeline || {})[window_.stage]);
  return rows.length > 2
    ? section(
        "timeline",
        "All steps of the run",
        "Step times by the training’s own clock, beginning when perfhooks detected the steps. Long runs show the " +
          "median of each interval.",
        timelineFigure(rows),
      )
    : null;
}

function startupSection() {
  const rows = rowsOf(DATA.startup || {});
  const whole = rows.reduce((sum, row) => sum + row.seconds, 0);
  return rows.length
    ? section(
        "startup",
        "Before the first step",
        `${ms(1000 * whole)} from the start of the process to the end of its first step. The main thread was sampled ` +
          "every 50 ms.",
        dataTable({
          id: "startup",
          caption: "Before the first step",
          columns: [
            { key: "phase", label: "What", kind: "text" },
            { key: "what", label: "Where", kind: "name" },
            { key: "seconds", label: "Seconds", kind: "number", bar: true },
          ],
          rows,
          limit: 12,
        }),
      )
    : null;
}

function checksSection(details, rank) {
  const words = { error: "error", warning: "warning", info: "note" };
  const found = rowsOf((details.checks || {}).rows);
  const line = (severity, text, more) =>
    el(
      "li",
      { class: `check ${severity}` },
      el("span", { class: "badge" }, words[severity]),
      el("span", null, text, more ? el("span", { class: "muted" }, ` ${more}`) : null),
    );
  const lines = found.map((each) => line(each.severity, each.text, each.first ? `First: ${each.first}.` : ""));
  lines.push(
    ...((details.findings || {}).rows || [])
      .filter((finding) => finding.doubts_others)
      .map((finding) => line("warning", finding.title, [...evidenceLines(finding), finding.advice].join("; "))),
    ...(rank.notes || []).map((note) => line("warning", note)),
    ...(details.problems || []).map((problem) => line("warning", `not in this report: ${problem}`)),
  );
  const cost = rank.cost || {};
  const spent = cost.trace_bytes
    ? ` The end of this window stopped the training for ` +
      `${ms((cost.stop_s + (cost.save_s || 0) + (cost.free_s || 0)) * 1000)}, for a trace of ` +
      `${bytes(cost.trace_bytes)}.`
    : "";
  const verdict = found.some((each) => each.severity === "error")
    ? "Some of these numbers are wrong or missing."
    : lines.length
      ? "Read these notes before you use the numbers."
      : details.checks
        ? "The checks of this trace found no problem."
        : "The trace was not checked.";
  const lead = `${verdict} The trace has ${plural(details.events || 0, "event")}.${spent}`;
  return section(
    "checks",
    "Reliability of the numbers",
    lead,
    lines.length ? el("ul", { class: "checks" }, lines) : null,
  );
}
