"""What holds where nobody says otherwise, each stated here alone. Loads nothing: every pytest that has the plugin reads it."""

MARGIN = 0.05  # largest loss of rate against a baseline, as a part of it
FALSE_ALARMS = 0.05  # of a whole session: probability that it turns red where no rate is worse than its margin allows
MISSED = 0.05  # of one check: probability that it passes where the rate is worse than the margin allows
EFFICIENCY = 0.70  # least, of a scaling test
MOST_EFFICIENT = 2.0  # devices that share caches do more than n times the work of one, but never so much: 90 was meant as 0.9
LEAST_RUNS = 2  # below it there is no spread, and so no telling a change from noise
MOST_RUNS = 10  # close cases need so many
