#!/usr/bin/env python3
"""Draws a terminal session as SVG: terminal_svg.py OUT < text. Lines that start with '$ ' are what was typed."""
import html
import sys

lines = sys.stdin.read().rstrip("\n").split("\n")
width = max(len(line) for line in lines) * 7.8 + 40
height = len(lines) * 19 + 44
out = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">',
    '<rect width="100%" height="100%" rx="8" fill="#14181d"/>',
    '<g fill="#3a4450"><circle cx="20" cy="16" r="5"/><circle cx="38" cy="16" r="5"/><circle cx="56" cy="16" r="5"/></g>',
    '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">',
]
for at, line in enumerate(lines):
    typed = line.startswith("$ ")
    colour = "#8fd0ff" if typed else "#d7dde4"
    out.append(f'<text x="20" y="{46 + 19 * at}" fill="{colour}">{html.escape(line)}</text>')
out += ["</g>", "</svg>"]
with open(sys.argv[1], "w") as file:
    file.write("\n".join(out) + "\n")
