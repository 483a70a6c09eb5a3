// SPDX-License-Identifier: Apache-2.0

//! From a graph of requests that wait for each other to sessions.
//!
//! A session is a chain: each turn waits for the end of the one before, and for nothing else. So a graph
//! is representable when it falls apart into chains. An edge that the rest of the chain already implies
//! is no obstacle: if c waits for b + 20 ms and b for a + 10 ms, then "c waits for a + 30 ms" says
//! nothing new. What is left over is refused with its reason, because replaying it another way would
//! be another workload: fan-in (two requests waited for), fan-out (two requests that wait for one),
//! and waits for a start instead of an end.
//!
//! Source: the triggers and the checks are those of Dynamo's agentic Mooncake, version 2.

use std::collections::HashMap;

use crate::workload::{Session, Turn};

use super::fault::Findings;

/// Requests named in a message at most.
const NAMED: usize = 8;

/// A request of the graph.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) request_id: String,
    /// Requests wait only for others of the same play.
    pub(crate) play: String,
    /// Earliest start, ms on the clock of the file.
    pub(crate) not_before_ms: f64,
    pub(crate) turn: Turn,
    pub(crate) waits: Vec<Wait>,
}

/// What a request waits for.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) request_id: String,
    pub(crate) delay_ms: f64,
    pub(crate) until: Until,
}

/// The event that ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Completion,
    Dispatch,
}

/// The request before in a chain, and the pause after it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    before: usize,
    delay_ms: f64,
}

/// The chains of the graph, each named after its first request; `field` is where rows name what they wait
/// for. Empty when there are faults.
pub(crate) fn into_sessions(nodes: Vec<Node>, field: &str, findings: &Findings) -> Vec<Session> {
    let Some(waits) = resolved(&nodes, field, findings) else {
        return Vec::new();
    };
    let Some(order) = ordered(&nodes, &waits, field, findings) else {
        return Vec::new();
    };
    let mut links: Vec<Option<Link>> = vec![None; nodes.len()];
    for &node in &order {
        links[node] = link(node, &nodes, &waits[node], &links, field, findings);
    }
    refuse_fan_out(&nodes, &links, field, findings);
    if findings.has_faults() {
        return Vec::new();
    }
    assembled(nodes, &order, &links, findings)
}

/// Waits of each node by index; nothing when some do not resolve.
fn resolved(nodes: &[Node], field: &str, findings: &Findings) -> Option<Vec<Vec<Link>>> {
    let mut by_id = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        if by_id.insert(node.request_id.as_str(), index).is_some() {
            findings.fault(
                node.line,
                "request_id",
                &node.request_id,
                "an id that no earlier row has",
            );
        }
    }
    let mut all = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let mut links = Vec::with_capacity(node.waits.len());
        for wait in &node.waits {
            let refuse = |why: String| {
                findings.fault(node.line, field, &wait.request_id, why);
            };
            match by_id.get(wait.request_id.as_str()) {
                None => refuse("the request_id of a row of this file".into()),
                Some(&before) if before == index => refuse("another request than itself".into()),
                Some(&before) if nodes[before].play != node.play => {
                    refuse(format!("a request of the same play, {}", node.play));
                }
                Some(_) if wait.until == Until::Dispatch => refuse(
                    "a wait for the end of a request: sessions cannot hold one for its start"
                        .into(),
                ),
                Some(&before) => links.push(Link {
                    before,
                    delay_ms: wait.delay_ms,
                }),
            }
        }
        all.push(links);
    }
    (!findings.has_faults()).then_some(all)
}

/// Nodes so that each comes after those it waits for; nothing when there is a cycle.
fn ordered(
    nodes: &[Node],
    waits: &[Vec<Link>],
    field: &str,
    findings: &Findings,
) -> Option<Vec<usize>> {
    let mut open: Vec<usize> = waits.iter().map(Vec::len).collect();
    let mut after = vec![Vec::new(); nodes.len()];
    for (node, links) in waits.iter().enumerate() {
        for link in links {
            after[link.before].push(node);
        }
    }
    let mut order: Vec<usize> = (0..nodes.len()).filter(|node| open[*node] == 0).collect();
    let mut next = 0;
    while let Some(&node) = order.get(next) {
        next += 1;
        for &waiting in &after[node] {
            open[waiting] -= 1;
            if open[waiting] == 0 {
                order.push(waiting);
            }
        }
    }
    if order.len() == nodes.len() {
        return Some(order);
    }
    let blocked: Vec<&Node> = (0..nodes.len())
        .filter(|n| open[*n] > 0)
        .map(|n| &nodes[n])
        .collect();
    let names: Vec<&str> = blocked
        .iter()
        .take(NAMED)
        .map(|node| node.request_id.as_str())
        .collect();
    if let Some(first) = blocked.first() {
        let value = format!(
            "a cycle that blocks {} requests ({})",
            blocked.len(),
            names.join(", ")
        );
        findings.fault(first.line, field, value, "waits that end");
    }
    None
}

/// The one wait of `node` that implies all the others.
fn link(
    node: usize,
    nodes: &[Node],
    waits: &[Link],
    links: &[Option<Link>],
    field: &str,
    findings: &Findings,
) -> Option<Link> {
    let last = waits.iter().find(|last| implies_all(**last, waits, links));
    if last.is_none() && !waits.is_empty() {
        let names: Vec<&str> = waits
            .iter()
            .take(NAMED)
            .map(|wait| nodes[wait.before].request_id.as_str())
            .collect();
        findings.fault(
            nodes[node].line,
            field,
            format!("[{}]", names.join(", ")),
            "one request, or others that it implies: a turn of a session follows one turn (fan-in)",
        );
    }
    last.copied()
}

/// Whether waiting for `last` is never shorter than any of `waits`.
fn implies_all(last: Link, waits: &[Link], links: &[Option<Link>]) -> bool {
    let mut longest = HashMap::from([(last.before, last.delay_ms)]);
    let (mut at, mut sum) = (last.before, last.delay_ms);
    while let Some(link) = links[at] {
        sum += link.delay_ms;
        at = link.before;
        longest.insert(at, sum);
    }
    waits.iter().all(|wait| {
        longest
            .get(&wait.before)
            .is_some_and(|implied| wait.delay_ms <= *implied)
    })
}

fn refuse_fan_out(nodes: &[Node], links: &[Option<Link>], field: &str, findings: &Findings) {
    let mut follower: Vec<Option<usize>> = vec![None; nodes.len()];
    for (node, link) in links.iter().enumerate() {
        let Some(link) = link else { continue };
        match follower[link.before] {
            None => follower[link.before] = Some(node),
            Some(other) => findings.fault(
                nodes[node].line,
                field,
                format!("[{}]", nodes[link.before].request_id),
                format!(
                    "a request that no other waits for; {} on line {} does (fan-out)",
                    nodes[other].request_id, nodes[other].line
                ),
            ),
        }
    }
}

fn assembled(
    nodes: Vec<Node>,
    order: &[usize],
    links: &[Option<Link>],
    findings: &Findings,
) -> Vec<Session> {
    /// Where a node's chain is, and the earliest start of the node in it if no request took any time.
    #[derive(Clone, Copy)]
    struct Place {
        session: usize,
        earliest_ms: f64,
    }
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    let mut places: Vec<Option<Place>> = vec![None; nodes.len()];
    let mut sessions: Vec<Session> = Vec::new();
    for &index in order {
        let Some(node) = nodes[index].take() else {
            continue;
        };
        let before = links[index].and_then(|link| Some((link, places[link.before]?)));
        let place = match before {
            None => {
                sessions.push(Session {
                    id: node.request_id,
                    start_ms: node.not_before_ms,
                    turns: vec![node.turn],
                });
                Place {
                    session: sessions.len() - 1,
                    earliest_ms: node.not_before_ms,
                }
            }
            Some((link, place)) => {
                let earliest_ms = place.earliest_ms + link.delay_ms;
                if node.not_before_ms > earliest_ms {
                    findings.warn(
                        "clock floor",
                        Some(node.line),
                        format!(
                            "not_before_ms {} of a request that waits for another is not used: it starts {} ms \
                             after that one ended",
                            node.not_before_ms, link.delay_ms
                        ),
                    );
                }
                sessions[place.session].turns.push(Turn {
                    delay_ms: link.delay_ms,
                    ..node.turn
                });
                Place {
                    earliest_ms,
                    ..place
                }
            }
        };
        places[index] = Some(place);
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(line: u64, id: &str, waits: &[(&str, f64)]) -> Node {
        Node {
            line,
            request_id: id.into(),
            play: "p".into(),
            not_before_ms: 0.0,
            turn: Turn {
                delay_ms: 0.0,
                input_tokens: 1,
                output_tokens: 1,
                hash_ids: vec![line],
                priority: None,
                policy_class: None,
            },
            waits: waits
                .iter()
                .map(|(id, delay_ms)| Wait {
                    request_id: (*id).into(),
                    delay_ms: *delay_ms,
                    until: Until::Completion,
                })
                .collect(),
        }
    }

    fn outcome(nodes: Vec<Node>) -> Result<Vec<Session>, String> {
        let findings = Findings::new("t".into(), Vec::new());
        let sessions = into_sessions(nodes, "dependencies", &findings);
        findings
            .check()
            .map(|()| sessions)
            .map_err(|list| list.to_string())
    }

    #[test]
    fn a_chain_is_a_session_whatever_the_order_of_its_rows() {
        let sessions = outcome(vec![node(1, "b", &[("a", 10.0)]), node(2, "a", &[])]).unwrap();
        assert_eq!(sessions.len(), 1);
        assert_eq!(sessions[0].id, "a");
        let delays: Vec<f64> = sessions[0].turns.iter().map(|turn| turn.delay_ms).collect();
        assert_eq!(delays, [0.0, 10.0]);
    }

    #[test]
    fn a_wait_that_the_chain_implies_is_no_fan_in() {
        let graph = |direct_ms| {
            vec![
                node(1, "a", &[]),
                node(2, "b", &[("a", 10.0)]),
                node(3, "c", &[("a", direct_ms), ("b", 20.0)]),
            ]
        };
        // c starts at least 10 + 20 ms after a anyway.
        assert_eq!(outcome(graph(30.0)).unwrap()[0].turns.len(), 3);
        let error = outcome(graph(31.0)).unwrap_err();
        assert!(error.starts_with("t:3: dependencies is [a, b];"), "{error}");
        assert!(error.ends_with("(fan-in)"), "{error}");
    }

    #[test]
    fn two_requests_that_wait_for_one_are_refused_as_fan_out() {
        let error = outcome(vec![
            node(1, "a", &[]),
            node(2, "b", &[("a", 0.0)]),
            node(3, "c", &[("a", 0.0)]),
        ])
        .unwrap_err();
        assert_eq!(
            error,
            "t:3: dependencies is [a]; allowed: a request that no other waits for; b on line 2 does (fan-out)"
        );
    }

    #[test]
    fn a_cycle_is_refused_with_the_requests_it_blocks() {
        let error = outcome(vec![
            node(1, "a", &[]),
            node(2, "b", &[("c", 0.0)]),
            node(3, "c", &[("b", 0.0)]),
        ])
        .unwrap_err();
        assert_eq!(
            error,
            "t:2: dependencies is a cycle that blocks 2 requests (b, c); allowed: waits that end"
        );
    }

    #[test]
    fn unknown_repeated_and_own_ids_are_refused() {
        let error = outcome(vec![
            node(1, "a", &[("a", 0.0)]),
            node(2, "b", &[("x", 0.0)]),
            node(3, "b", &[]),
        ])
        .unwrap_err();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("t:1: dependencies is a; allowed: another request"));
        assert!(lines[1].starts_with("t:2: dependencies is x; allowed: the request_id"));
        assert!(
            lines[2].starts_with("t:3: request_id is b; allowed: an id that no earlier row has")
        );
    }

    #[test]
    fn a_wait_for_a_start_is_refused() {
        let mut spawned = node(2, "b", &[("a", 0.0)]);
        spawned.waits[0].until = Until::Dispatch;
        let error = outcome(vec![node(1, "a", &[]), spawned]).unwrap_err();
        assert!(
            error.contains("sessions cannot hold one for its start"),
            "{error}"
        );
    }
}
