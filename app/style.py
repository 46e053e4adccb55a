"""Colours and shapes of the page. Contrasts are at least 4.5 to 1 in light and in dark."""

from __future__ import annotations

from typing import Any

TITLE = "Secondhand"

CSS = """
:root { --color-accent: #1e4a8c } .dark { --color-accent: #9dbdf5 }
/* Gradio's player: pale grey on white otherwise. */
.component-wrapper { --neutral-400: #4b5563 } .dark .component-wrapper { --neutral-400: #c3c9d2 }
.gradio-container { max-width: 72rem !important; margin: 0 auto !important }
.sh-head h1 { font-size: 1.7rem; margin: .2rem 0 0 } .sh-head p { margin: .2rem 0 0 }
.sh-answer { border: 1px solid var(--border-color-primary); border-left-width: .5rem;
  border-radius: .5rem; padding: .9rem 1.1rem; background: var(--background-fill-primary) }
.sh-known { border-left-color: #15803d } .sh-unknown { border-left-color: #b45309 }
.sh-label { font-size: 2.1rem; line-height: 1.2; font-weight: 700; margin: 0; overflow-wrap: anywhere }
.sh-words { margin: .3rem 0 0; font-size: 1.05rem; overflow-wrap: anywhere }
.sh-page h3, .sh-top + h3 { font-size: 1rem; margin: 1.1rem 0 .4rem }
.sh-top { list-style: none; padding: 0; margin: 0 }
.sh-top li { display: grid; grid-template-columns: minmax(6rem, 11rem) 1fr 6rem; gap: .7rem;
  align-items: center; padding: .18rem 0 }
.sh-name { overflow-wrap: anywhere } .sh-share { text-align: right; font-variant-numeric: tabular-nums }
.sh-bar { height: .75rem; border-radius: .4rem; background: var(--border-color-primary); overflow: hidden }
.sh-bar span { display: block; height: 100%; background: #3b6fd4 }
.sh-note { margin: .1rem 0; color: var(--body-text-color) }
.sh-panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15.5rem), 1fr)); gap: 1rem }
.sh-plain { grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr)); max-width: 40rem }
.sh-panel { margin: 0; max-width: 26rem } .sh-panel svg, .sh-plot, .sh-strip { width: 100%; height: auto; display: block }
.sh-panel svg text, .sh-plot text { fill: var(--body-text-color); font-size: 14px }
.sh-strip text { fill: var(--body-text-color); font-size: 15px }
.sh-panel line { stroke: var(--body-text-color) }
.sh-panel figcaption { font-size: .95rem; margin-top: .2rem }
.sh-plot { max-width: 24rem } .sh-plot line { stroke: #3b6fd4; stroke-width: 2 }
.sh-plot circle { fill: #3b6fd4 } .sh-plot .sh-ideal { stroke: var(--body-text-color); stroke-dasharray: 5 4;
  stroke-width: 1 } .sh-frame { fill: none; stroke: var(--body-text-color) }
.sh-back { fill: var(--border-color-primary) }
.sh-legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1rem; padding: 0; margin: .3rem 0 }
.sh-dot { display: inline-block; width: .8rem; height: .8rem; border-radius: .4rem; margin-right: .35rem }
.sh-wide { overflow-x: auto; contain: inline-size }
.sh-wide table { border-collapse: collapse; border: 0 !important; width: 100%; min-width: 30rem }
.sh-wide thead, .sh-wide tbody, .sh-wide tr { border: 0 !important } .sh-why { min-width: 15rem }
.sh-wide td, .sh-wide th { padding: .3rem .6rem; text-align: left; vertical-align: top;
  border: 0 !important; border-bottom: 1px solid var(--border-color-primary) !important }
.sh-confusion td, .sh-confusion th { text-align: center !important; padding: .25rem .4rem }
.sh-confusion td.sh-dark { color: #fff } .sh-confusion { width: auto !important; min-width: 0 !important }
.sh-confusion thead th span { writing-mode: vertical-rl; transform: rotate(180deg) }
.sh-tiles { display: flex; flex-wrap: wrap; gap: .7rem; margin: .6rem 0 }
.sh-tile { border: 1px solid var(--border-color-primary); border-radius: .5rem; padding: .5rem .9rem }
.sh-tile b { display: block; font-size: 1.35rem }
.sh-classes { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); gap: .8rem }
.sh-classes figure { margin: 0 } .sh-classes img { width: 100%; border-radius: .3rem }
.sh-classes figcaption { font-size: .95rem; overflow-wrap: anywhere }
.sh-save { display: inline-block; padding: .45rem .9rem; border-radius: .4rem; background: #1e4a8c;
  color: #fff !important; text-decoration: none }
.sh-facts { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0 }
.sh-facts dt { font-weight: 600 } .sh-facts dd { margin: 0; overflow-wrap: anywhere }
.sh-page a:focus-visible, .sh-wide:focus-visible, summary:focus-visible, button:focus-visible {
  outline: 3px solid #3b6fd4 !important; outline-offset: 2px }
@media (max-width: 480px) {
  .sh-top li { grid-template-columns: minmax(5rem, 1fr) 1fr 5.2rem } .sh-label { font-size: 1.7rem }
  .sh-facts { grid-template-columns: 1fr } .sh-facts dd { margin-bottom: .4rem } }
"""


def theme() -> Any:
    """Gradio's own theme with the fonts of the reader's machine and with enough contrast."""
    import gradio as gr

    system = ["system-ui", "sans-serif"]
    grey, light = "#4b5563", "#c3c9d2"
    return gr.themes.Default(
        primary_hue="blue", font=system, font_mono=["ui-monospace", "monospace"]
    ).set(
        body_text_color_subdued=grey,
        body_text_color_subdued_dark=light,
        block_info_text_color=grey,
        block_info_text_color_dark=light,
        block_label_text_color="#374151",
        block_label_text_color_dark="#e5e7eb",
        block_title_text_color="#374151",
        block_title_text_color_dark="#e5e7eb",
        input_placeholder_color=grey,
        input_placeholder_color_dark=light,
        button_primary_background_fill="#1e4a8c",
        button_primary_background_fill_dark="#1e4a8c",
        button_primary_background_fill_hover="#163868",
        button_primary_background_fill_hover_dark="#163868",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        link_text_color="#1e4a8c",
        link_text_color_dark="#9dbdf5",
        slider_color="#3b6fd4",
        slider_color_dark="#3b6fd4",
    )
