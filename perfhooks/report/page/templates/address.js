// The address of what is shown, to be sent to others: what stands after # names a section or table, the window, the
// rank, and what is searched in the table (find), how it is grouped (by) and sorted (sort), and its open row (at).

const places = new Map(); // of what answers to addresses: a table, the flame graph

function readAddress() {
  const [id, query] = location.hash.slice(1).split("?");
  let name = id;
  try {
    name = decodeURIComponent(id);
  } catch (error) {
    // no address of ours: it names nothing here
  }
  return { id: name, given: Object.fromEntries(new URLSearchParams(query || "")) };
}

// what is named of one table; nothing where the address is about another
function addressOf(id) {
  const { id: named, given } = readAddress();
  return named === id ? given : {};
}

// the window and rank as far as there are several
function whereabouts() {
  return typeof currentPlace === "function" ? currentPlace() : {};
}

function address(id, given) {
  const every = Object.entries({ ...whereabouts(), ...given }).filter(([, value]) => known(value) && value !== "");
  return `#${encodeURIComponent(id)}${every.length ? `?${new URLSearchParams(every)}` : ""}`;
}

// a change by hand is no step to go back to
function noteAddress(id, given) {
  try {
    history.replaceState(null, "", address(id, given));
  } catch (error) {
    // some browsers allow no such thing in a file; the page works without
  }
}

// the element that an address names
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
