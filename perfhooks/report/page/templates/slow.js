// Slow steps: a line on the first screen, and a section.

function slowSteps() {
  const slow = DATA.slow;
  const count = plural(slow.count, "step");
  const of = known(slow.steps) ? `${grouped(slow.count, 0)} of ${plural(slow.steps, "step")}` : count;
  const causes = Object.entries(slow.causes)
    .filter(([cause]) => cause !== "unknown")
    .map(([cause, count]) => `${cause} (${grouped(count, 0)})`)
    .join(", ");
  const total = `${of} ${slow.count === 1 ? "was" : "were"} slow and took ${ms(slow.wall_ms)} together`;
  return `${total}. Causes: ${causes || "unknown"}`;
}

function slowLine() {
  if (!DATA.slow) return null;
  return el(
    "p",
    { class: "slow-line" },
    `${slowSteps()}. `,
    el("a", { href: address("slow", {}) }, "See each"),
    ".",
  );
}

function slowSection() {
  const slow = DATA.slow;
  if (!slow) return null;
  const of = (term) => meaning("slow", term);
  const stages = new Set((slow.rows.stage || []).values());
  const columns = [
    { key: "step", label: "Step", kind: "text", title: of("stage, step") },
    { key: "stage", label: "Loop", kind: "text", word: true, title: of("stage, step") },
    { key: "rank", label: "Rank", kind: "text" },
    { key: "wall_ms", label: "Step, ms", kind: "ms", bar: true, title: of("wall_ms, times_median") },
    { key: "times_median", label: "Times the median", kind: "number", title: of("wall_ms, times_median") },
    { key: "cause", label: "Cause", kind: "text", word: true, title: of("cause") },
    { key: "explained_ms", label: "Explained, ms", kind: "ms", title: of("explained_ms"), extra: true },
    { key: "line", label: "Line", kind: "name", title: of("line") },
    { key: "data_ms", label: "Waiting for data, ms", kind: "ms", title: of("data_ms") },
    { key: "gc_ms", label: "Garbage collection, ms", kind: "ms", title: of("gc_ms") },
    { key: "cpu_percent", label: "CPU use, %", kind: "percent", title: of("cpu_share"), extra: true },
    { key: "switches", label: "Times off the CPU", kind: "count", title: of("switches, faults"), extra: true },
    { key: "faults", label: "Memory page faults", kind: "count", title: of("switches, faults"), extra: true },
    { key: "alloc_retries", label: "Allocator retries", kind: "count", title: of("alloc_retries"), extra: true },
  ].filter((each) => each.key !== "stage" || stages.size > 1);
  const shown = height(slow.rows);
  const share = (row) => (known(row.cpu_share) ? 100 * row.cpu_share : null);
  const rows = rowsOf(slow.rows).map((row) => ({ ...row, cpu_percent: share(row) }));
  const notes = [
    slow.ranks > 1 ? `On ${slow.ranks} ranks. A step that was slow on several ranks counts once.` : null,
    shown < slow.rows_count ? `These are the longest ${shown} of ${grouped(slow.rows_count, 0)}.` : null,
    slow.is_cut ? "Earlier slow steps are only in the files." : null,
  ];
  return section(
    "slow",
    "Slow steps",
    [`${slowSteps()}.`, ...notes.filter(Boolean)].join(" "),
    dataTable({
      id: "slow",
      key: "step",
      caption: "Slow steps",
      columns,
      rows,
      sort: { key: "wall_ms", descending: true },
      search: "Search slow steps",
      limit: 10,
    }),
  );
}
