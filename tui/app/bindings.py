"""The one table of keys: key, action, label and help.

`TABLE` is the source of Textual's bindings, the hints in the frame, the help screen and the command palette. Keys
follow the trajectory viewers and pagers that people know: `h/l` step, `H/L` trajectory, `j/k`, `g/G`, `/`, `f`, `s`.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

RUNS, LIVE, LIST, GROUPS, STEP = "runs", "live", "trajectories", "groups", "stepper"
COMPARE, DIFF, HELP, PLAY, CHAT = "compare", "diff", "help", "play", "chat"
BEHAVIOR, BESIDE, SCATTER, TIMELINE = "behavior", "side by side", "scatter", "timeline"
SCREEN_TITLES = {
    RUNS: "Runs",
    LIVE: "Live",
    LIST: "Trajectories",
    GROUPS: "Groups",
    STEP: "Stepper",
    COMPARE: "Compare runs",
    DIFF: "Diff",
    HELP: "Help",
    CHAT: "Chat",
    BEHAVIOR: "Behaviour",
    BESIDE: "Side by side",
    SCATTER: "Scatter",
    TIMELINE: "Timeline",
    PLAY: "Play",
}
EVERYWHERE = tuple(SCREEN_TITLES)
PAGES = NOT_LIVE = tuple(s for s in EVERYWHERE if s != LIVE)
PANES = (LIVE, STEP, PLAY, COMPARE)


@dataclass(frozen=True)
class Key:
    """One row of the table. Hints with a low `hint` come first; 0 means no hint. `together`: the keys of a hint for
    several rows."""

    screens: tuple[str, ...]
    keys: str
    shown: str
    action: str
    label: str
    help: str
    hint: int = 0
    together: str = ""


TABLE: tuple[Key, ...] = (
    # runs
    Key((RUNS,), "enter", "enter", "open", "open", "Open the dashboard of an active run, else the last view", 1),
    Key((RUNS,), "l", "l", "live", "live", "Open the dashboard of the run", 3),
    Key((RUNS,), "t", "t", "trajectories", "trajectories", "Open the trajectories of the run", 4),
    Key((RUNS,), "space,m", "space", "mark", "mark", "Mark the run for comparison", 5),
    Key((RUNS,), "c", "c", "compare", "compare", "Compare the marked runs: evaluations by task, curves, settings", 6),
    Key((RUNS,), "x", "x", "stop_run", "stop", "Ask a running run to save and stop"),
    Key((RUNS,), "R", "R", "rename", "rename", "Rename the run", 8),
    Key((RUNS,), "D,delete", "D", "delete", "delete", "Delete the run with its record, or forget a dump", 9),
    Key((RUNS,), "r", "r", "reload", "reload", "Reload the list"),
    # live
    Key((LIVE,), "enter", "enter", "open", "trajectories", "Open the trajectories, or the evidence of an alert", 1),
    Key((LIVE,), "space", "space", "pause", "pause", "Pause after this step, or resume; press again to undo", 2),
    Key((LIVE,), "x", "x", "stop", "stop", "Save a checkpoint and stop the run", 3),
    Key((LIVE,), "c", "c", "checkpoint", "checkpoint", "Save a checkpoint after this step, or publish a version", 4),
    Key((LIVE,), "m", "m", "next_chart", "metric", "Show the next chart", 6),
    Key((LIVE,), "M", "M", "choose_metrics", "choose", "Choose the metrics of the chart by name"),
    Key((LIVE,), "L", "L", "log_scale", "log scale", "Switch between logarithmic and linear scale"),
    Key((LIVE,), "t", "t", "next_axis", "x axis", "Switch the x axis: steps, time or tokens"),
    Key((LIVE,), "n", "n", "next_text(1)", "next text", "Show the next text in progress", 5),
    Key((LIVE,), "N", "N", "next_text(-1)", "", "Show the previous text in progress"),
    Key((LIVE,), "z", "z", "whole", "whole panel", "Show only the active panel, or all panels", 7),
    Key((LIVE,), "w", "w", "smooth", "smooth", "Smooth the curves more, or not at all after the maximum"),
    Key((LIVE, BEHAVIOR), "plus,equals_sign", "+", "zoom(0.5)", "zoom in", "Show half as many steps"),
    Key((LIVE, BEHAVIOR), "minus", "−", "zoom(2.0)", "zoom out", "Show twice as many steps"),
    Key((LIVE, BEHAVIOR), "left,h", "h ←", "pan(-1)", "earlier", "Show earlier steps"),
    Key((LIVE, BEHAVIOR), "right,l", "l →", "pan(1)", "later", "Show later steps"),
    Key((LIVE, BEHAVIOR), "0", "0", "zoom_all", "all", "Show all steps"),
    Key((LIVE,), "v,B", "v", "behavior", "behaviour", "Show actions, lengths, endings and components by step"),
    Key((LIVE,), "o", "o", "pager", "log", "Open the log in $PAGER"),
    # trajectories
    Key((LIST,), "enter,l,right", "enter", "open", "open", "Step through the trajectory", 1),
    Key((LIST,), "z", "z", "fold", "groups", "Switch between groups and single rollouts", 6),
    Key((LIST,), "b", "b", "histogram", "histogram", "Show or hide the histogram"),
    Key((LIST,), "m", "m", "next_value", "value", "Switch the histogram: rewards, tokens or turns"),
    Key((LIST,), "left_square_bracket", "[", "bar(-1)", "", "Show only rollouts of the previous bar"),
    Key((LIST,), "right_square_bracket", "]", "bar(1)", "bar",
        "Show only rollouts of the next bar; after the last, all", 9, "[/]"),
    Key((LIST,), "r", "r", "reverse", "reverse", "Reverse the order"),
    Key((LIST, GROUPS), "c", "c", "clear", "clear", "Clear filter and search", 7),
    Key((LIST,), "F", "F", "follow", "follow", "Follow the newest rollout of an active run"),
    Key((LIST, GROUPS), "n", "n", "scroll(1)", "", "Next match of the search"),
    Key((LIST, GROUPS), "N", "N", "scroll(-1)", "", "Previous match of the search"),
    Key((LIST,), "v", "v", "live", "live", "Open the dashboard of the run"),
    Key((LIST, GROUPS), "B", "B", "behavior", "behaviour", "Show how the listed rollouts behave by step", 9),
    Key((LIST, GROUPS, STEP), "u", "u", "over_steps", "prompt", "Show the rollouts of this prompt at all steps", 9),
    # side by side
    Key((LIST, GROUPS, STEP), "a", "a", "side_by_side", "side by side", "Show all rollouts of the group in columns", 8),
    Key((BESIDE,), "enter", "enter", "open", "open", "Step through the rollout of the selected column", 1),
    Key((BESIDE,), "h,left", "h ←", "column(-1)", "", "Select the column to the left"),
    Key((BESIDE,), "l,right", "l →", "column(1)", "column", "Select the column to the right", 2, "h/l"),
    Key((BESIDE,), "H", "H", "columns(-1)", "", "Show the previous page of columns"),
    Key((BESIDE,), "L", "L", "columns(1)", "page", "Show the next page of columns", 3, "H/L"),
    Key((BESIDE,), "z", "z", "whole_texts", "whole texts", "Show more of each text, or only its beginning", 4),
    # scatter
    Key((LIST, GROUPS), "x", "x", "scatter", "scatter", "Plot two values of the rollouts against each other", 10),
    Key((SCATTER,), "enter", "enter", "open", "open", "Step through the rollouts of the point", 1),
    Key((SCATTER,), "t", "t", "trajectories", "list", "List the rollouts of the point", 2),
    Key((SCATTER,), "m", "m", "choose", "values", "Choose the values of the x axis and the y axis", 3),
    Key((SCATTER,), "h,left", "h ←", "along(-1)", "", "Move to a point on the left"),
    Key((SCATTER,), "l,right", "l →", "along(1)", "", "Move to a point on the right"),
    # timeline
    Key((LIVE,), "i", "i", "timeline", "timeline", "Show the time of each step by phase"),
    Key((TIMELINE,), "enter", "enter", "open", "trajectories", "List the rollouts of the step", 1),
    # behaviour
    Key((BEHAVIOR,), "enter", "enter", "open", "trajectories", "List the rollouts with this action or ending", 1),
    Key((BEHAVIOR,), "s", "s", "steps", "steps", "Choose the steps to compare: 10 200, or 10..200 for a range", 2),
    # groups
    Key((GROUPS,), "enter,l,right", "enter", "open", "open", "Step through the rollouts of the group", 1),
    Key((GROUPS,), "z", "z", "back", "rollouts", "List single rollouts again", 2),
    Key((GROUPS,), "r", "r", "reverse", "reverse", "Reverse the order", 6),
    # stepper
    Key((STEP,), "h,left", "h ←", "step(-1)", "", "Previous step"),
    Key((STEP,), "l,right", "l →", "step(1)", "step", "Next step", 1, "h/l"),
    Key((STEP,), "H,p", "H p", "rollout(-1)", "", "Previous trajectory of the list"),
    Key((STEP,), "L", "L", "rollout(1)", "trajectory", "Next trajectory of the list", 2, "H/L"),
    Key((STEP,), "n", "n", "match(1)", "", "Next match of the search, or next trajectory"),
    Key((STEP,), "N", "N", "match(-1)", "", "Previous match"),
    Key((STEP,), "left_square_bracket", "[", "sibling(-1)", "", "Previous rollout of the group"),
    Key((STEP,), "right_square_bracket", "]", "sibling(1)", "group", "Next rollout of the group", 5, "[/]"),
    Key((STEP,), "t", "t", "tokens", "tokens", "Colour tokens by mask, log-prob, advantage, trainer in turn", 3),
    Key((STEP,), "w", "w", "mismatch", "mismatch", "Go to the token with the largest mismatch, then the next", 8),
    Key((STEP,), "d", "d", "diff", "diff", "Compare with another rollout of the group or prompt", 4),
    Key((STEP,), "b", "b", "branch", "branch", "Sample continuations and estimate the value of this step", 8),
    Key((STEP,), "c", "c", "conversation", "conversation", "Show the whole conversation, or one step", 7),
    Key((STEP,), "m", "m", "note", "note", "Write a note on the trajectory; #words are labels for filters"),
    Key((STEP, PLAY), "P", "P", "prompt", "prompt", "Show or hide the whole prompt and the task"),
    Key((STEP,), "i", "i", "image", "image", "Show or hide the image of the step", 9),
    Key((STEP,), "I", "I", "image_size", "", "Make the image larger or smaller"),
    Key((STEP,), "enter", "enter", "open_text", "open text", "Open or fold the selected text", 6),
    Key((STEP, PLAY), "J", "J", "choose_text(1)", "", "Select the next text that folds"),
    Key((STEP, PLAY), "K", "K", "choose_text(-1)", "", "Select the previous text that folds"),
    Key((STEP, PLAY), "Z", "Z", "open_all(True)", "", "Open all texts"),
    Key((STEP, PLAY), "z", "z", "open_all(False)", "", "Fold all texts"),
    Key((STEP, PLAY), "r", "r", "raw", "raw", "Switch between raw and rendered texts or tokens"),
    Key((STEP,), "x", "x", "failed(1)", "failed call", "Go to the next step with a failed call", 7),
    Key((STEP,), "X", "X", "failed(-1)", "", "Go to the previous step with a failed call"),
    Key((STEP,), "asterisk", "*", "same_tool(1)", "", "Go to the next step that calls the same tool"),
    Key((STEP,), "number_sign", "#", "same_tool(-1)", "", "Go to the previous step that calls the same tool"),
    Key((STEP,), "T", "T", "thought", "", "Go to the next step with a thought of more than 500 tokens"),
    Key((STEP,), "f", "f", "filter", "filter", "Show only the steps that match an expression", 8),
    Key((STEP,), "less_than_sign", "<", "border(-4)", "", "Make the text wider"),
    Key((STEP,), "greater_than_sign", ">", "border(4)", "", "Make the text narrower"),
    Key((STEP,), "E", "E", "export_markdown", "", "Write the trajectory to a Markdown file"),
    Key((STEP,), "ctrl+n", "ctrl+n", "next_penalty", "penalised", "Go to the next penalised step"),
    # play
    Key((PLAY,), "enter,i", "enter", "type", "your turn", "Type the next turn: tool calls or plain text", 1),
    Key((PLAY,), "1", "1", "choose(1)", "tool", "Start a call of tool 1", 2, "1-9"),
    *(Key((PLAY,), str(n), str(n), f"choose({n})", "", f"Start a call of tool {n}") for n in range(2, 10)),
    Key((PLAY,), "ctrl+r", "ctrl+r", "model", "model", "Let the model continue; press again to edit its turn", 3),
    Key((PLAY,), "n", "n", "another('next')", "next task", "Leave this rollout and play the next task", 4),
    Key((PLAY,), "a", "a", "another('again')", "again", "Leave this rollout and play the task again", 5),
    Key((PLAY,), "o", "o", "recorded", "recorded", "List the recorded rollouts", 6),
    Key((PLAY,), "space", "space", "open_text", "open text", "Open or fold the selected text", 7),
    # chat
    Key((LIVE,), "a", "a", "chat", "chat", "Chat with the policy that the run serves, or with a checkpoint of it", 5),
    Key((CHAT,), "enter", "enter", "write", "write", "Write a message", 1),
    Key((CHAT,), "1", "1", "rate('right')", "right", "Rate the last answer as right", 2),
    Key((CHAT,), "2", "2", "rate('wrong')", "wrong", "Rate the last answer as wrong", 3),
    Key((CHAT,), "e", "e", "correct", "correct", "Correct the text of the last answer", 4),
    Key((CHAT,), "i", "i", "inbox", "inbox", "Show the least certain answer without feedback", 5),
    Key((CHAT,), "b", "b", "base", "base", "Ask version 0 (the base) the same question", 6),
    Key((CHAT,), "v", "v", "version", "version", "Ask a kept version the same question", 7),
    Key((CHAT,), "n", "n", "new", "new", "Start a new conversation", 8),
    # lists and text
    Key(EVERYWHERE, "j,down", "j ↓", "scroll(1)", "", "Down"),
    Key(EVERYWHERE, "k,up", "k ↑", "scroll(-1)", "", "Up"),
    Key(PAGES, "pagedown,ctrl+d,ctrl+f", "pgdn", "page(1)", "", "One page down"),
    Key(PAGES, "pageup,ctrl+u,ctrl+b", "pgup", "page(-1)", "", "One page up"),
    Key(PAGES, "g,home", "g", "first", "", "Go to the first, or on the first step to the top of the text"),
    Key(PAGES, "G,end", "G", "last", "", "Go to the last, or on the last step to the end of the text"),
    Key(PANES, "tab", "tab", "next_pane(1)", "pane", "Switch to the next pane", 8),
    Key(PANES, "shift+tab", "shift+tab", "next_pane(-1)", "", "Switch to the previous pane"),
    Key((LIST, LIVE, GROUPS), "slash", "/", "search", "search", "Search the text of all trajectories", 5),
    Key((STEP,), "slash", "/", "search", "search", "Find in this trajectory", 6),
    Key((RUNS, LIST, GROUPS), "f", "f", "filter", "filter", "Show only rows that match an expression", 3),
    Key((RUNS, LIST, GROUPS), "s", "s", "sort", "sort", "Sort by the next column", 4),
    Key((DIFF,), "h,left", "h ←", "step(-1)", "", "Previous step that differs"),
    Key((DIFF,), "l,right", "l →", "step(1)", "step", "Next step that differs", 1, "h/l"),
    Key((DIFF,), "left_square_bracket", "[", "other(-1)", "", "Compare with the previous candidate"),
    Key((DIFF,), "right_square_bracket", "]", "other(1)", "other", "Compare with the next candidate", 2, "[/]"),
    Key((DIFF,), "p", "p", "pool", "pool", "Choose candidates from this group, or this prompt over the run", 3),
    Key((COMPARE,), "enter", "enter", "open", "side by side", "Open a flipped task's rollouts; from curves, back", 1),
    Key((COMPARE,), "m", "m", "next_chart", "metric", "Overlay the curves of the next metric", 2),
    Key((COMPARE,), "w", "w", "smooth", "smooth", "Smooth the curves more, or not at all after the maximum", 3),
    Key((COMPARE,), "a", "a", "all_keys", "all keys", "Show only the settings that differ, or all", 4),
    # export, open, copy
    Key((LIST, STEP, DIFF, LIVE, COMPARE, BESIDE), "e", "e", "export", "export", "Write this view to a file", 10),
    Key((STEP, DIFF, LIST, BESIDE), "o", "o", "pager", "open", "Open this view in $PAGER", 11),
    Key((STEP, DIFF, LIST, BESIDE), "O", "O", "pager('EDITOR')", "", "Open this view in $EDITOR"),
    Key((RUNS, LIST, STEP, DIFF), "y", "y", "copy", "copy", "Copy: the step, or the id of the row", 12),
    # everywhere
    Key((LIST, LIVE, GROUPS, STEP), "colon", ":", "go_to", "go to", "Go to a number, id, step or screen", 13),
    Key(EVERYWHERE, "ctrl+z", "ctrl+z", "app.suspend_process", "", "Return to the shell; fg resumes the app"),
    Key((LIVE,), "question_mark,f1", "?", "help", "help", "Show this help (also F1)", 1),
    Key(NOT_LIVE, "question_mark,f1", "?", "help", "help", "Show this help", 98),
    Key(EVERYWHERE, "escape,backspace", "esc", "back", "back", "Go back to the previous screen", 2),
    Key(EVERYWHERE, "ctrl+t", "ctrl+t", "app.next_theme", "theme", "Next theme: four, two of them colour-blind-safe"),
    Key(EVERYWHERE, "ctrl+l", "ctrl+l", "app.repaint", "repaint", "Repaint the screen"),
    Key(EVERYWHERE, "q", "q", "app.quit", "quit", "Quit; runs continue", 3),
)  # fmt: skip


def bindings(screen: str) -> list[BindingType]:
    """Return the Textual bindings of one screen."""
    return [
        Binding(key, row.action, row.help, show=False)
        for row in TABLE
        if _is_of(row, screen)
        for key in row.keys.split(",")
    ]


def hints(screen: str) -> list[Key]:
    """Return the hints of the frame by priority. Keys of the screen come before global keys."""
    rows = [r for r in TABLE if _is_of(r, screen) and r.hint]
    first: dict[str, Key] = {}
    for row in sorted(rows, key=lambda r: (r.screens == EVERYWHERE, r.hint)):
        first.setdefault(row.label, row)
    return list(first.values())


def helps(screen: str) -> list[Key]:
    """Return the rows of the help screen."""
    return [r for r in TABLE if _is_of(r, screen)]


def _is_of(row: Key, screen: str) -> bool:
    """Return whether a screen has this key. A screen without its own keys has the global ones."""
    return screen in row.screens or (row.screens == EVERYWHERE and screen not in SCREEN_TITLES)
