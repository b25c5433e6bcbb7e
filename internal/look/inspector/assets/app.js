// The one script of the pages. Without it each page works by links and forms. What changes comes as HTML, made by the templates that made
// the page; it is put in place piece by piece, so that what a person reads, writes or has opened stays as it is.

const page = () => document.getElementById("page");

// idOf is the id of an element. A form's own property is the field of that name.
const idOf = (node) => node.nodeType === 1 && node.getAttribute("id") || "";

const alike = (a, b) => a.nodeName === b.nodeName && !idOf(a) && a.getAttribute("class") === b.getAttribute("class");

// morph makes a like b. A form whose box "all" is checked keeps the things that were shown when the person checked it.
function morph(a, b) {
  if (a.isEqualNode(b) || a.nodeName === "FORM" && a.elements.all?.checked) return;
  if (a.nodeType !== 1) {
    if (a.nodeValue !== b.nodeValue) a.nodeValue = b.nodeValue;
    return;
  }
  for (const { name } of [...a.attributes]) {
    if (!b.hasAttribute(name) && !keeps(a, name)) a.removeAttribute(name);
  }
  for (const { name, value } of b.attributes) {
    if (!keeps(a, name) && a.getAttribute(name) !== value) a.setAttribute(name, value);
  }
  if (a.nodeName === "TEXTAREA" || a.nodeName === "SELECT" && a === document.activeElement) return;
  let at = a.firstChild;
  for (let want of [...b.childNodes]) {
    const key = idOf(want);
    // What has an id is that of the same id; another element is the next of its kind and class; a text is only what stands here.
    let have = key ? [...a.children].find((c) => idOf(c) === key) : at;
    while (have && !key && want.nodeType === 1 && !alike(have, want)) have = have.nextSibling;
    if (have && have.nodeName === want.nodeName) {
      // Moving this node would lose the focus: remove the nodes before it, which are added again later.
      while (at && at !== have && have.contains(document.activeElement)) {
        const next = at.nextSibling;
        at.remove();
        at = next;
      }
      if (have !== at) a.insertBefore(have, at);
      morph(have, want);
      at = have.nextSibling;
    } else {
      want = document.importNode(want, true);
      if (key && want.classList.contains("row")) want.classList.add("fresh");
      a.insertBefore(want, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// keeps reports whether an attribute is the person's.
function keeps(element, name) {
  return element.nodeName === "DETAILS" && name === "open" || name === "value" && element.nodeName === "INPUT" && element.type !== "hidden" ||
    idOf(element) === "pause" || idOf(element) === "keys";
}

function take(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("page");
  if (!fresh) return;
  // The forms stay those of the page that was loaded: the stream is of all viewers.
  for (const field of fresh.querySelectorAll("input[name=csrf]")) field.setAttribute("value", document.body.dataset.csrf);
  const said = page().querySelector(".said"); // the stream does not know what a form said
  if (said && !fresh.querySelector(".said")) fresh.querySelector("header.top").after(said.cloneNode(true));
  morph(page(), fresh);
  document.title = page().dataset.title;
}

// alert says what is wrong with the connection, or nothing.
function alert(text) {
  const box = document.getElementById("alert");
  if (box.textContent !== text) box.textContent = text;
  box.hidden = !text;
}

let source = null, waiting = null;

function follow() {
  source?.close();
  source = waiting = null;
  const live = page().dataset.live, button = document.getElementById("pause");
  if (!live) return;
  button.hidden = false;
  source = new EventSource(live);
  source.addEventListener("hello", () => alert(""));
  source.addEventListener("trouble", (e) => alert(e.data));
  source.addEventListener("page", (e) => {
    alert("");
    if (button.getAttribute("aria-pressed") === "true" || !getSelection().isCollapsed) waiting = e.data;
    else take(e.data);
  });
  source.onerror = () => alert("The connection to waymark ui is lost: this page shows what was there before.");
}

function pause() {
  const button = document.getElementById("pause"), on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", on);
  if (!on && waiting) take(waiting);
  waiting = null;
}

// Single letters are commands unless the person has switched that off, which this browser keeps.
let keyed = true;
function keys(on) {
  keyed = on;
  const button = document.getElementById("keys");
  button.hidden = false;
  button.setAttribute("aria-pressed", on);
}
try { keyed = localStorage.getItem("waymark-keys") !== "off"; } catch { /* it may keep nothing */ }
keys(keyed);

document.addEventListener("click", (e) => {
  if (idOf(e.target) === "pause") pause();
  if (idOf(e.target) === "keys") {
    keys(!keyed);
    try { localStorage.setItem("waymark-keys", keyed ? "on" : "off"); } catch { /* for this page then */ }
  }
});
document.addEventListener("selectionchange", () => {
  if (waiting && getSelection().isCollapsed && document.getElementById("pause").getAttribute("aria-pressed") !== "true") {
    take(waiting);
    waiting = null;
  }
});

// Keys: j and k go through the rows, Enter opens one, / goes to the filter, f n t e h to the pages, p pauses.
document.addEventListener("keydown", (e) => {
  if (!keyed || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.nodeName)) return;
  if (e.key === "j" || e.key === "k") {
    const rows = [...document.querySelectorAll("main .row, .strip .row")].map((r) => r.querySelector("a, summary, button")).filter(Boolean);
    const now = rows.indexOf(document.activeElement);
    const next = rows[now < 0 ? 0 : Math.min(Math.max(now + (e.key === "j" ? 1 : -1), 0), rows.length - 1)];
    next?.focus();
  } else if (e.key === "/") {
    const field = document.querySelector(".filter input, .filter select");
    if (!field) return;
    field.focus();
  } else if (e.key === "p") {
    pause();
  } else if (e.key === "?") {
    alert("j k rows · Enter opens · / filter · f fleet · n needs you · e executors · h health · p pause");
    setTimeout(() => alert(""), 6000);
  } else if ("fneh".includes(e.key)) {
    document.querySelectorAll("nav[aria-label=Pages] a")["fneh".indexOf(e.key)].click();
  } else return;
  e.preventDefault();
});

// What was sent stays as it was sent, for a second click.
document.addEventListener("submit", () => source?.close());

// A browser has few connections to one address: a hidden page closes its own.
document.addEventListener("visibilitychange", () => document.hidden ? source?.close() : follow());
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", follow);
