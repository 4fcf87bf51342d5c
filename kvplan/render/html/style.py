"""How the page looks; its colours are those of the pictures."""

STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:1.5rem clamp(.9rem,3vw,2.5rem) 3rem}
h1{font-size:1.55rem;line-height:1.25;margin:0}
h2{font-size:1.25rem;margin:2.2rem 0 .3rem}
h3{font-size:1.02rem;margin:1.8rem 0 .4rem}
p{margin:.3rem 0}
h1,h2,h3,p,li{overflow-wrap:anywhere}.remark{overflow-wrap:break-word}
.detail,.note,.remark,figcaption,footer{color:var(--quiet)}
.note,figcaption,footer,summary{font-size:.875rem}
footer{margin-top:2.5rem;border-top:1px solid var(--rule);padding-top:.6rem}
table{border-collapse:collapse;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--rule)}
thead th{color:var(--quiet);font-weight:600;vertical-align:bottom;border-bottom:2px solid var(--rule)}
.figure{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.figure{white-space:normal}
.wide td{white-space:nowrap}
.wide td.prose{white-space:normal;min-width:24ch}
.facts th{font-weight:400;white-space:nowrap}
.facts .value{font-weight:600;white-space:nowrap;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto;max-width:100%}
.wide:focus-visible,summary:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
ul{margin:.3rem 0;padding-left:1.2rem}
aside{border-left:4px solid var(--limit);padding:.3rem .9rem;margin:1.4rem 0}
.figures{display:grid;
grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));
gap:1.6rem 2rem;margin:1.8rem 0}
figure{margin:0;min-width:0}
figure.stacked{grid-column:1/-1}
figure svg{display:block;width:100%;height:auto;max-width:760px}
figcaption{padding:.2rem .3rem}
details{margin:.3rem}
summary{cursor:pointer;color:var(--quiet)}
details table{font-size:.82rem}
@media (max-width:560px){.facts th{white-space:normal}.facts .remark{font-size:.85rem}.facts .value{min-width:6.5rem;
white-space:normal}}
@page{margin:14mm}
@media print{
body{font-size:9pt}main{max-width:none;padding:0}
figure,tr,aside,header{break-inside:avoid}h2,h3{break-after:avoid}
.figures{display:block}figure{display:grid;grid-template-columns:100mm 1fr;grid-template-rows:auto 1fr;
column-gap:5mm;margin-bottom:7mm}
figure svg,figcaption{grid-column:1}details{grid-column:2;grid-row:1/3;margin:0}
details table{font-size:6.8pt}details .wide td{white-space:normal}details th,details td{padding:.3mm 2mm .3mm 0}
.wide{overflow:visible}.wide table{font-size:7.5pt}.wide th,.wide td{padding-right:2.5mm}
summary{list-style:none}
details::details-content{content-visibility:visible;block-size:auto;display:block}
}
"""
