// What a reader has read and done, kept in this browser and nowhere else (localStorage); and pictures at full size.
"use strict";
(() => {
  const EXERCISES = @EXERCISES@, LESSONS = @LESSONS@; // the numbers of all exercises, how many lessons: of pages.py
  const KEY = "norm-worklog";
  const LESSON = /^\d\d_\w+\/$/, EXERCISE_PAGE = /^(\d\d)_\w+\/exercise\/$|\/(bug)_hunt\/$/, NUMBER = /^(\w+\.\d+)\b/;

  const logo = document.querySelector("a.md-logo");
  const article = document.querySelector("article");
  if (!logo || !article) return;
  const base = new URL(logo.href).pathname.replace(/index\.html$/, "");
  const pageOf = address => new URL(address, location.href).pathname.replace(/index\.html$/, "").slice(base.length);
  const here = pageOf(location.href);

  let state = { read: {}, done: {}, place: null };
  try {
    state = { ...state, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch { /* a browser that keeps nothing: the page works, and forgets */ }
  function keep() {
    try {
      localStorage.setItem(KEY, JSON.stringify(state));
    } catch { /* as above */ }
  }

  // --- The navigation: a mark at what has been read, and at exercises that are all done ---
  const numbersOf = page => {
    const [, stage, bug] = EXERCISE_PAGE.exec(page) ?? [];
    return EXERCISES.filter(number => number.startsWith(stage ?? bug ?? "none"));
  };
  function isFinished(page) {
    if (LESSON.test(page)) return Boolean(state.read[page]);
    const numbers = numbersOf(page);
    return numbers.length > 0 && numbers.every(number => state.done[number]);
  }
  function mark() {
    for (const link of document.querySelectorAll(".md-nav--primary a.md-nav__link[href]")) {
      link.classList.toggle("worklog-finished", isFinished(pageOf(link.href)));
    }
  }

  // --- A lesson: a button at its end, and the place where one stopped ---
  if (LESSON.test(here)) {
    const button = document.createElement("button");
    button.className = "md-button worklog-read";
    const show = () => {
      button.textContent = state.read[here] ? "Read. Undo" : "I have read this lesson";
      button.setAttribute("aria-pressed", String(Boolean(state.read[here])));
    };
    button.onclick = () => {
      if (state.read[here]) delete state.read[here];
      else state.read[here] = true;
      keep();
      show();
      mark();
    };
    show();
    article.append(button);

    const headings = [...article.querySelectorAll("h2[id]")];
    let waiting = 0;
    addEventListener("scroll", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        const above = headings.filter(heading => heading.getBoundingClientRect().top < innerHeight / 2).pop();
        if (!above) return;
        const words = above.cloneNode(true);
        words.querySelectorAll(".headerlink").forEach(link => link.remove());
        state.place = { page: here, anchor: above.id, section: words.textContent.trim(),
                        lesson: article.querySelector("h1").firstChild.textContent.trim() };
        keep();
      }, 400);
    }, { passive: true });
  }

  // --- Exercises: a box to tick at each ---
  if (EXERCISE_PAGE.test(here)) {
    const left = new Set(numbersOf(here)); // a page may have a second table, of answers
    for (const cell of article.querySelectorAll("table td:first-child")) {
      const number = NUMBER.exec(cell.textContent.trim())?.[1];
      if (!left.delete(number)) continue;
      const box = document.createElement("input");
      box.type = "checkbox";
      box.className = "worklog-done";
      box.checked = Boolean(state.done[number]);
      box.setAttribute("aria-label", `${number} is done`);
      box.onchange = () => {
        if (box.checked) state.done[number] = true;
        else delete state.done[number];
        keep();
        mark();
      };
      cell.prepend(box, " ");
    }
  }

  // --- The front page: how far one has come ---
  if (here === "") {
    const read = Object.keys(state.read).length, done = EXERCISES.filter(number => state.done[number]).length;
    if (read || done || state.place) {
      const line = document.createElement("p");
      line.className = "worklog-progress";
      line.append(`You have read ${read} of ${LESSONS} lessons, and done ${done} of ${EXERCISES.length} exercises.`);
      if (state.place) {
        const link = document.createElement("a");
        link.href = `${base}${state.place.page}#${state.place.anchor}`;
        link.textContent = `${state.place.lesson}: ${state.place.section}`;
        line.append(" You were at ", link, ".");
      }
      article.querySelector("h1").after(line);
    }
  }
  mark();

  // --- A picture that is no link opens at full size ---
  for (const picture of article.querySelectorAll("img")) {
    if (picture.closest("a")) continue;
    const link = document.createElement("a");
    link.href = picture.src;
    link.title = "at full size";
    picture.replaceWith(link);
    link.append(picture);
  }
})();
