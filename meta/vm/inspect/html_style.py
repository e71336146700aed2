"""The style of a page, for light and dark."""

from meta.base.html import STYLE as TABLES

STYLE = (
    TABLES
    + """
:root{color-scheme:light dark;--back:#fff;--text:#1c2126;--soft:#f5f6f8;--line:#dfe3e8;
--accent:#1a66c2;--new:#d9f3de;--old:#fbe0e0}
.meta-ir .var{color:#155c96}.meta-ir .global,.meta-ir .data{color:#7a3fb0}
.meta-ir .keyword{color:#a02a6a}.meta-ir .dtype{color:#0e6a4f}.meta-ir .op{color:#94490c}
.meta-ir .number,.meta-ir .string{color:#416a17}.meta-ir a,.meta-ir .comment{color:#646b73}
@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#dde2e8;--soft:#1e2329;--line:#333a43;
--accent:#6db3ff;--new:#173d24;--old:#4a2024}
.meta-ir .var{color:#6db3ff}.meta-ir .global,.meta-ir .data{color:#c69cf0}
.meta-ir .keyword{color:#f08bbd}.meta-ir .dtype{color:#5fcfae}.meta-ir .op{color:#f0a35e}
.meta-ir .number,.meta-ir .string{color:#a5cf6a}.meta-ir a,.meta-ir .comment{color:#98a1ab}}
*{box-sizing:border-box}
html{scroll-padding-top:3.4rem}
body{margin:0;background:var(--back);color:var(--text);font:14px/1.5 system-ui,sans-serif}
header{position:sticky;top:0;z-index:1;display:flex;gap:1.5rem;align-items:baseline;
padding:.6rem 1.5rem;background:var(--soft);border-bottom:1px solid var(--line)}
h1{font:600 1.05rem ui-monospace,monospace;margin:0;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
nav{display:flex;gap:1rem;flex-wrap:wrap}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
main{max-width:1280px;margin:0 auto;padding:0 1.5rem 4rem}
main.meta-view{font-size:13px;max-width:1280px;overflow:visible}
section{padding-top:.4rem}
.columns{display:flex;gap:.5rem 3rem;flex-wrap:wrap;align-items:flex-start}
.wide{overflow-x:auto}
h2{font-size:1.25rem;margin:1.6rem 0 .7rem;padding-bottom:.25rem;
border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem;
margin:.7rem 0 1rem}
.tile{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.55rem .8rem}
.value{font-size:1.35rem;font-weight:600;white-space:nowrap}.name{opacity:.7}
.note{background:var(--soft);border-left:3px solid #d9822b;padding:.5rem .8rem;margin:.6rem 0}
summary{padding:.12rem 0}
summary:hover{color:var(--accent)}
td>details>summary{padding:0}
.box{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;
margin:.3rem 0 .8rem;font-size:12px;max-height:70vh;overflow:auto}
.passes{border:1px solid var(--line);border-radius:6px;overflow:hidden}
.passes>*{border-top:1px solid var(--line);padding:.1rem .8rem}
.passes>:first-child{border-top:0}
.passes>details>summary,.idle{display:grid;align-items:baseline;gap:.8rem;
grid-template-columns:16.5rem 6rem 5rem 6.2rem 1fr}
.passes>details>summary::before{content:"▸";position:absolute;margin-left:-.75rem;font-size:.8em;
opacity:.7}
.passes>details[open]>summary::before{content:"▾"}
.passes>details>summary{list-style:none}.passes>details{padding-left:.8rem}
.pass{font-family:ui-monospace,monospace;overflow:hidden;text-overflow:ellipsis}
.passes>details .pass{font-weight:600}
.idle{opacity:.6}
.count,.time{font-variant-numeric:tabular-nums;white-space:nowrap}.time{text-align:right}
.bar>span{display:block;height:.6em;background:#d9822b;border-radius:2px}
.about{opacity:.7;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.diff{margin:.3rem 0 .7rem;padding:.5rem 0;background:var(--soft);border:1px solid var(--line);
border-radius:6px;font-size:12px;content-visibility:auto;contain-intrinsic-size:auto 20rem}
.diff div{white-space:pre-wrap;overflow-wrap:anywhere;padding:0 .8rem 0 3.6rem;text-indent:-2rem}
.diff details>div,.diff .far+div{padding-left:0}
.diff details>div{padding-right:0}
.diff .old{background:var(--old)}.diff .new{background:var(--new)}
.diff .edit{background:color-mix(in srgb,var(--soft),var(--accent) 8%)}
.diff .old,.diff .new,.diff .edit{position:relative}
.diff .old::before,.diff .new::before,.diff .edit::before{position:absolute;left:2.8rem;opacity:.7}
.diff .old::before{content:"−"}.diff .new::before{content:"+"}.diff .edit::before{content:"~"}
.diff del{background:var(--old);text-decoration:line-through;text-decoration-color:#c4484880}
.diff ins{background:var(--new);text-decoration:none;font-weight:600}.diff del+ins{margin-left:3px}
.diff div:empty{height:.9em}
.diff summary,.diff .far{opacity:.65;padding:0 .8rem;text-indent:0;font-family:system-ui,sans-serif}
.meta-view td .meta-ir{margin:.3em 0}
td details[open]{max-width:30rem}td details>div.code{overflow-wrap:anywhere}
td details td{font-size:.92em}
.graph{font:10.5px ui-monospace,monospace;display:block;margin:0 auto}
.graph path{fill:none;stroke:currentColor;opacity:.35}
.graph text{text-anchor:middle;fill:currentColor}.graph .title{font-weight:600}
.graph rect{fill-opacity:.28}.graph .given{fill:none;stroke:currentColor}
.graph .result{stroke:currentColor;stroke-width:2.5}
td .meta-ir{max-width:25rem;font-size:.9em}
"""
)
