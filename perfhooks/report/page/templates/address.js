// Addresses of views, for links. The part after # has a section or table, the window, the rank, and the state of the
// table: its search (find), grouping (by), order (sort) and open row (at).

const places = new Map(); // views that react to addresses: tables and the flame graph

function readAddress() {
  const [id, query] = location.hash.slice(1).split("?");
  let name = id;
  try {
    name = decodeURIComponent(id);
  } catch (error) {
    // the address is of another kind
  }
  return { id: name, given: Object.fromEntries(new URLSearchParams(query || "")) };
}

// the state of one table in the address; empty if the address is about another one
function addressOf(id) {
  const { id: named, given } = readAddress();
  return named === id ? given : {};
}

// the window and rank, if there are several
function whereabouts() {
  return typeof currentPlace === "function" ? currentPlace() : {};
}

function address(id, given) {
  const every = Object.entries({ ...whereabouts(), ...given }).filter(([, value]) => known(value) && value !== "");
  return `#${encodeURIComponent(id)}${every.length ? `?${new URLSearchParams(every)}` : ""}`;
}

// changes by the user add no entry to the history of the browser
function noteAddress(id, given) {
  try {
    history.replaceState(null, "", address(id, given));
  } catch (error) {
    // some browsers forbid this for local files; the report works without it
  }
}

function target(id) {
  const tables = [...document.querySelectorAll("[data-table]")];
  return document.getElementById(id) || tables.find((each) => each.dataset.table === id);
}

function goTo() {
  const { id, given } = readAddress();
  const place = places.get(id);
  if (place && Object.keys(given).some((name) => name !== "window" && name !== "rank")) place(given);
  const found = id && target(id);
  if (!found) return;
  const row = found.querySelector("tr.current, tr.opened");
  (given.at && row ? row : found).scrollIntoView({ block: given.at && row ? "center" : "start" });
}
