/* What pages do more where scripts run: keys, a slider, a plot, and events as they come.
   It puts no text into a page but as text; what the server rendered is escaped there. */
"use strict";
(() => {
  const $ = (what, inside = document) => inside.querySelector(what);
  const $$ = (what, inside = document) => [...inside.querySelectorAll(what)];
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

  /* Where one is: an event has the focus, or is the first that can be seen. */
  const events = () => $$("[data-event]").filter((one) => one.checkVisibility === undefined || one.checkVisibility() || one.closest("details:not([open])"));
  const open = (one) => {
    for (let up = one.parentElement; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
  };
  const go = (one) => {
    if (!one) return;
    open(one);
    one.focus({ preventScroll: true });
    one.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
  };
  const here = () => document.activeElement?.closest?.("[data-event]");
  const step = (by) => {
    const all = events(), at = here();
    if (at) return go(all[all.indexOf(at) + by]);
    const seen = all.findIndex((one) => one.getBoundingClientRect().bottom > 80);
    go(all[by > 0 ? Math.max(seen, 0) : Math.max(seen - 1, 0)]);
  };
  const toggle = () => {
    const at = here(), fold = at?.matches("details") ? at : $("details.rest", at || undefined) || at?.closest("details");
    if (at && fold) fold.open = !fold.open;
  };
  const all = () => {
    const turns = $$(".turn, .moment"), shut = turns.some((one) => !one.open);
    turns.forEach((one) => (one.open = shut));
  };
  const help = () => { const box = $("#help"); if (box && !box.open) box.showModal(); };
  /* The next failure of the page; without one, the link to the next one of the run. */
  const failure = (by) => {
    const all = $$(".failed[data-event]"), at = here();
    const follows = (one) => at && one !== at && !at.contains(one) && (at.compareDocumentPosition(one) & (by > 0 ? Node.DOCUMENT_POSITION_FOLLOWING : Node.DOCUMENT_POSITION_PRECEDING));
    const next = at ? (by > 0 ? all.find(follows) : all.findLast(follows)) : all[by > 0 ? 0 : -1];
    if (next) return go(next);
    const link = $(`[data-failure=${by > 0 ? "after" : "before"}]`);
    if (!link) return;
    const url = new URL(link.href), seqs = $$("[data-event][id^=e]").map((one) => Number(one.id.slice(1)));
    if (seqs.length) url.searchParams.set(by > 0 ? "after" : "before", by > 0 ? Math.max(...seqs) : Math.min(...seqs));
    location.assign(url);
  };
  const keys = {
    f: () => failure(1), F: () => failure(-1),
    j: () => step(1), k: () => step(-1), o: toggle, a: all, "?": help,
    c: () => $("[data-context]", here() || undefined)?.click(),
    "/": () => $("[data-search]")?.focus(),
  };
  addEventListener("keydown", (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey || $("dialog[open]")) return;
    if (key.target.matches("input, select, textarea, [contenteditable]")) {
      if (key.key === "Escape") key.target.blur();
      return;
    }
    const does = keys[key.key];
    if (does) { key.preventDefault(); does(); }
  });
  $$("[data-does]").forEach((one) => {
    one.hidden = false;
    one.addEventListener("click", one.dataset.does === "help" ? help : all);
  });
  const find = () => { const one = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1))); if (one) { open(one); if (one.matches("details")) one.open = true; one.scrollIntoView(); } };
  addEventListener("hashchange", find);
  find();

  /* Times are shown in the reader's zone; the title has them in UTC. */
  const two = (n) => String(n).padStart(2, "0");
  const localize = (inside) => {
    for (const one of $$("time[data-local]", inside)) {
      const at = new Date(one.dateTime), said = one.textContent.trim();
      if (Number.isNaN(at.getTime())) continue;
      const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
      const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
      one.textContent = said.length === 8 ? clock : `${day} ${clock}`.slice(0, said.length);
      if (!one.title) one.title = `${said} UTC`;
      one.removeAttribute("data-local");
    }
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const one of $$("[data-zone]", inside)) one.textContent = zone;
  };
  localize(document);

  /* Two buttons stand in the event that has the pointer or the focus: they copy its link, and its text. */
  const copier = $("[data-copy-link]");
  if (copier) {
    const bar = document.createElement("span"), words = copier.dataset;
    bar.className = "copies";
    const copy = async (text, button) => {
      const label = button.textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {  /* without a secure connection there is no clipboard */
        const field = document.createElement("textarea");
        field.value = text;
        bar.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
      }
      button.textContent = words.copied;
      setTimeout(() => { button.textContent = label; }, 1500);
    };
    const button = (label, text) => {
      const one = document.createElement("button");
      one.type = "button";
      one.className = "plain";
      one.textContent = label;
      one.addEventListener("click", () => copy(text(bar.closest("[data-event]")), one));
      bar.append(one);
    };
    const address = (event) => {
      const url = new URL(location.pathname, location), user = new URLSearchParams(location.search).get("user");
      if (user) url.searchParams.set("user", user);
      if (/^e\d+$/.test(event.id)) url.searchParams.set("seq", event.id.slice(1));
      url.hash = event.id;
      return url.href;
    };
    const shown = (event) => $$("pre, .prose", event)
      .filter((one) => one.closest("[data-event]") === event && !one.parentElement.closest(".prose"))
      .map((one) => one.textContent.replace(/\n$/, "")).join("\n");
    button(words.copyLink, address);
    button(words.copyText, shown);
    const place = (event) => {
      const tail = event && $(".tail", event.matches(".result") ? event : $(".what", event) || event);
      if (tail && bar.parentElement !== tail) tail.prepend(bar);
    };
    for (const kind of ["pointerover", "focusin"]) {
      copier.addEventListener(kind, (event) => place(event.target.closest("[data-event]")));
    }
  }

  /* What a slider stands at is said while it moves. */
  addEventListener("input", (event) => {
    const said = event.target.dataset?.says && document.getElementById(event.target.dataset.says);
    if (said) said.textContent = said.htmlFor.contains("nth") ? moment(event.target.value) : event.target.value;
  });

  /* In a single file: one moment at a time. */
  const box = $("[data-contexts]");
  const moment = (nth) => {
    const moments = $$(".moment", box), one = moments[nth - 1];
    moments.forEach((other) => { other.hidden = other !== one; other.open = other === one; });
    return one.dataset.seq;
  };
  if (box) {
    $(".slider", box).hidden = false;
    $("#nth-said").textContent = moment($("#nth").value);
  }

  /* Tokens and dollars over requests. */
  const plots = $("[data-plot]");
  if (plots && window.uPlot) {
    const sets = JSON.parse(document.getElementById(plots.dataset.plot).textContent);
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const known = (key) => sets.every((one) => one[key].length);
    const place = (title) => {
      const figure = document.createElement("div"), head = document.createElement("h2");
      figure.className = "plot";
      head.textContent = title;
      figure.append(head);
      plots.append(figure);
      return figure;
    };
    const draw = (figure, key, form) => {
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
      const size = () => ({ width: figure.clientWidth, height: 240 });
      const made = new uPlot({
        ...size(), scales: { x: { time: false } }, legend: { live: true },
        axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 70, values: (_, all) => all.map(form) }],
        series: [{ label: plots.dataset.request }, ...sets.map((one, nth) => ({
          label: one.label, stroke: colour(nth ? "--b" : "--a"), width: 2, dash: nth ? [6, 4] : [], points: { show: one[key].length < 60, size: 5 }, value: (_, value) => value === null ? "" : form(value),
        }))],
      }, [sets[0].tokens.map((_, at) => at + 1), ...sets.map((one) => one[key])], figure);
      addEventListener("resize", () => made.setSize(size()));
    };
    const tokens = place(plots.dataset.tokens), dollars = known("dollars") && place(plots.dataset.dollars);
    draw(tokens, "tokens", (value) => value.toLocaleString("en"));
    if (dollars) draw(dollars, "dollars", (value) => "$" + value.toFixed(value < 1 ? 4 : 2));
  }

  /* What is new in a session that goes on: its last turn is asked for again. */
  const turns = $("[data-tail]");
  if (turns && window.EventSource) {
    const said = $("#live"), link = (path, query) => {
      const url = new URL(path, location);
      for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
      return url;
    };
    const whose = new URLSearchParams(location.search).get("user");
    const source = new EventSource(link(turns.dataset.tail, { after: turns.dataset.after, ...(whose ? { user_id: whose } : {}) }));
    let wanted = 0, asking = false;
    const ask = async () => {
      if (asking || !wanted) return;
      asking = true;
      const seen = wanted, last = $(".turn:last-of-type", turns);
      const first = last ? Number(last.id.slice(1)) : Number(turns.dataset.after) + 1;
      try {
        const answer = await fetch(link(turns.dataset.part, { after: first - 1 }));
        if (!answer.ok) return source.close();
        const part = new DOMParser().parseFromString(await answer.text(), "text/html").body;
        const kept = new Set($$("details[open]", last || turns).map((one) => one.id).filter(Boolean));
        const focused = here()?.id, low = innerHeight + scrollY >= document.body.scrollHeight - 200;
        const fresh = $$(".turn", part);
        fresh.forEach(localize);
        fresh.forEach((one) => { if (kept.has(one.id)) one.open = true; });
        last?.remove();
        turns.append(...fresh);
        if (window.htmx) htmx.process(turns);
        if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
        if (low) scrollTo({ top: document.body.scrollHeight });
        said.textContent = said.dataset.new;
        setTimeout(() => { said.textContent = ""; }, 2000);
        if (wanted === seen) wanted = 0;
      } finally { asking = false; if (wanted) setTimeout(ask, 300); }
    };
    source.addEventListener("event", (event) => { wanted = Number(event.lastEventId); setTimeout(ask, 120); });
    source.addEventListener("end", () => source.close());
    addEventListener("pagehide", () => source.close());
  }
})();
