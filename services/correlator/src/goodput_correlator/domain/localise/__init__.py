"""Probe localisation: which component of the network loses or delays probes.

A probe is one small packet and its answer between two NIC ports. One lost probe says little: some ten components lie on its
way. Thousands of flows that cross the fabric in different ways say a lot, for what all the bad ones cross and the good ones
do not is to blame. The steps, each a pure function:

    counted  one flow: a row of numbers a window, and the reports that may be cited
    reports  which reports count: windows that are closed, each report once
    ends     hosts that answer or probe slowly: their lost and late probes are no fault of the network
    matrix   flows against the components that they cross (or may cross, with the share of equal-cost ways that do)
    greedy, voting, bayes, likelihood    four ways to name the components that explain the bad flows
    answer   ranked suspects, what each explains, and what nothing explains

That is how files are looked at, and what is tested. A service looks every few seconds at a fabric of which little changes:

    crossings  flows and probes of each component, kept up to date from window to window
    look       the same answer from these sums and the bad flows alone
"""
