// Keeps the page fresh, and adds keys. Without it every page works as it is.
"use strict";

const live = document.getElementById("live");
const stale = document.getElementById("stale");
const state = document.getElementById("live-state");
let tag = null;
let pointer = false; // over a button: nothing moves under it
let missed = 0;

function localTimes(root) {
  for (const each of root.querySelectorAll("text[data-at]")) {
    each.textContent = new Date(1000 * each.dataset.at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  }
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    const today = at.toDateString() === new Date().toDateString();
    const clock = at.toLocaleTimeString("en-GB");
    each.textContent = today ? clock : `${at.toLocaleDateString("en-US", { month: "short", day: "numeric" })}, ${clock}`;
  }
}

function busy() {
  const field = document.activeElement;
  return pointer || document.hidden || String(getSelection()) || live.querySelector("details[open]") ||
    (live.contains(field) && /^(INPUT|SELECT|TEXTAREA|A|BUTTON)$/.test(field.tagName));
}

function show(ok) {
  missed = ok ? 0 : missed + 1;
  stale.hidden = missed < 2;
  const old = missed > 0 || Boolean(live.querySelector(".banner.away"));
  state.classList.toggle("old", old);
  state.lastChild.textContent = old ? " Old" : " Live";
}

async function refresh() {
  if (busy()) return;
  try {
    const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, redirect: "manual", cache: "no-store" });
    if (answer.type === "opaqueredirect" || answer.status === 403) return location.reload();
    if (answer.status !== 304) { // changed
      const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      if (page && !busy()) {
        tag = answer.headers.get("ETag");
        live.replaceChildren(...page.childNodes);
        localTimes(live);
      }
    }
    show(answer.status < 500);
  } catch {
    show(false);
  }
}

if (state) {
  setInterval(refresh, 3000);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  live.addEventListener("pointerover", (event) => { pointer = Boolean(event.target.closest(".button, a")); });
  live.addEventListener("pointerleave", () => { pointer = false; });
}
localTimes(document);
document.querySelector("form[data-send]")?.requestSubmit(); // of a one-time link

// -- theme

const theme = document.getElementById("theme");
const wanted = localStorage.getItem("qd-theme");
if (wanted) document.documentElement.dataset.theme = wanted;
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("qd-theme", document.documentElement.dataset.theme);
});

// -- keys: g and the first letter of a page, / for the filter, j and k for rows

const PAGES = { o: "overview", q: "queues", f: "failed", w: "workers", s: "schedule", m: "metrics", e: "events" };
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (going && PAGES[event.key]) document.querySelector(`a[data-page=${PAGES[event.key]}]`)?.click();
  going = event.key === "g";
  if (event.key === "/") {
    const field = document.getElementById("search");
    if (field) { event.preventDefault(); field.focus(); }
  }
  if (event.key === "j" || event.key === "k") {
    const links = [...live.querySelectorAll("tbody th a")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + (event.key === "j" ? 1 : -1)))]?.focus();
  }
});
