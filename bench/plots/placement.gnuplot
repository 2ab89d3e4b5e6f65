# Draws bench/plots/placement.png from the report of placement_bench:
#   build/release/bench/placement_bench --json run.json
#   gnuplot -e "report='run.json'" bench/plots/placement.gnuplot
set terminal pngcairo size 900,420 font "sans,10"
set output "bench/plots/placement.png"
field(name) = sprintf("grep placement_step %s | sed -E 's/.*nodes_a_sequence\":([0-9]+).*%s\":([0-9.]+).*/\\1 \\2/'", report, name)
set logscale xy 2
set xlabel "nodes that a sequence of 1,048,576 tokens touches (of 64)"
set grid
set multiplot layout 1,2
set title "a step, one sequence alone"
set ylabel "ms (model)"
plot "<".field("step_ms") with linespoints pointtype 7 notitle
set title "what it costs the pool"
set ylabel "messages a step; steps/s of all nodes (model)"
plot "<".field("messages_a_step") with linespoints pointtype 7 title "messages a step", \
     "<".field("steps_per_s_of_all_nodes") with linespoints pointtype 5 title "steps/s of all nodes"
unset multiplot
