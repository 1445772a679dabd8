"""The page's style sheet: one column on a phone, two where there is room."""

from __future__ import annotations

STYLE = """
:root { --back: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5b6675; --line: #dde2e9; --bar: #2563eb; --bar2: #f0a73a;
  --disease: #b42318; --slow: #a15c07; --note: #1d5fa8; --healthy: #18794e; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --card: #1b212a; --ink: #e8ecf2; --soft: #a2adbb; --line: #323b47;
  --bar: #6aa1ff; --bar2: #d9902b; --disease: #ff8a7d; --slow: #f3bd5b; --note: #84bbff; --healthy: #62d6a0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 1000px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.25rem; line-height: 1.35; margin: 0 0 8px; }
h2 { font-size: 1rem; margin: 0 0 6px; }
h3 { font: 600 .9rem/1.4 ui-monospace, monospace; margin: 14px 0 2px; }
p { margin: 0; color: var(--soft); }
ul { margin: 0; padding-left: 1.15em; }
li { margin: 3px 0; }
code { font: .92em ui-monospace, monospace; background: color-mix(in srgb, var(--line) 45%, transparent); border-radius: 4px;
  padding: 0 4px; }
header, section, details.also { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
  margin: 0 0 12px; }
header, details.also { border-left: 6px solid var(--tone); }
header h1 { color: var(--tone); }
.disease { --tone: var(--disease); } .slow { --tone: var(--slow); } .note { --tone: var(--note); } .healthy { --tone: var(--healthy); }
.blind { border-left: 6px solid var(--slow); }
details.also section { border: 0; padding: 10px 0 0; margin: 0; }
section details { border-top: 1px solid var(--line); padding: 6px 0; }
summary { cursor: pointer; }
.tag { display: inline-block; font: 600 .78rem/1.5 ui-monospace, monospace; color: var(--soft); border: 1px solid var(--line);
  border-radius: 20px; padding: 0 9px; margin: 0 6px 0 0; }
.two, .charts { display: grid; gap: 16px 24px; grid-template-columns: 1fr; }
@media (min-width: 760px) { .two { grid-template-columns: 1fr 1fr; } .charts { grid-template-columns: 1fr 1fr 1fr; } }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; color: var(--soft); font-weight: 600; }
th, td { padding: 5px 14px 5px 0; vertical-align: top; border-bottom: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
small { color: var(--soft); }
@media (max-width: 620px) { tr { display: grid; grid-template-columns: 4em 1fr 3em 4.6em 4.5em; border-bottom: 1px solid var(--line); }
  th, td { border: 0; padding: 4px 6px 2px 0; } td:last-child, th:last-child { grid-column: 1 / -1; } th:last-child { display: none; } }
figure { margin: 0; min-width: 0; display: flex; flex-direction: column; justify-content: space-between; }
figcaption { font-weight: 600; margin-bottom: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-weight: 400; font-size: .82rem; color: var(--soft); }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; background: var(--bar); }
.key i.part1 { background: var(--bar2); }
svg { display: block; overflow: visible; }
svg text { fill: var(--ink); font-size: 12px; font-family: system-ui, sans-serif; }
svg .tick, svg .axis { fill: var(--soft); font-size: 11px; }
svg .value { font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); } svg .track { fill: var(--line); opacity: .45; }
svg .part0 { fill: var(--bar); } svg .part1 { fill: var(--bar2); }
pre { margin: 4px 0 0; padding: 8px 10px; background: var(--back); border: 1px solid var(--line); border-radius: 6px; overflow-x: auto;
  font: 12px/1.5 ui-monospace, monospace; overflow-wrap: normal; }
footer { color: var(--soft); font-size: .82rem; padding: 4px 2px 20px; }
"""
